/* `ats plan --svg`: layers by tensors, coloured by side. */
#include "base/replace.h"
#include "cli/cli.h"
#include "cli/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Sizes in pixels. */
enum { CELL = 16, LEFT = 110, TOP = 58, GAP = 2, BOTTOM = 44, MIN_WIDTH = 620 };

static const char *const role_titles[ATS_ROLES] = {
    [ATS_ROLE_QKV] = "q, k, v",
    [ATS_ROLE_ATTENTION] = "KV cache, state",
    [ATS_ROLE_ATTN_OUT] = "attention out",
    [ATS_ROLE_ROUTER] = "router",
    [ATS_ROLE_EXPERTS_UP] = "experts up",
    [ATS_ROLE_EXPERTS_DOWN] = "experts down",
    [ATS_ROLE_SHARED_UP] = "shared up",
    [ATS_ROLE_SHARED_DOWN] = "shared down",
    [ATS_ROLE_FFN_UP] = "feed-forward up",
    [ATS_ROLE_FFN_DOWN] = "feed-forward down",
    [ATS_ROLE_OTHER] = "other",
    [ATS_ROLE_OUTPUT] = "output head",
};

struct grid {
    int row_of_role[ATS_ROLES]; /* -1: none */
    int n_rows;
    int n_columns; /* layers, and the output head */
};

static struct grid measure(const struct plan *p)
{
    struct grid g = {.n_columns = (int)p->model->params.n_layers + 1};
    bool used[ATS_ROLES] = {false};
    for (size_t k = 0; k < p->n_parts; k++) {
        for (size_t i = 0; i < p->parts[k].model->n_units; i++) {
            const enum ats_model_role role = p->parts[k].model->units[i].role;
            used[role] = used[role] || plan_where(&p->parts[k], i) != NULL;
        }
    }
    for (int role = 0; role < ATS_ROLES; role++) {
        g.row_of_role[role] = used[role] && role_titles[role] != NULL ? g.n_rows++ : -1;
    }
    return g;
}

static const char *class_of(const char *where)
{
    return strcmp(where, "VRAM") == 0 ? "v" : strcmp(where, "host") == 0 ? "h" : "p";
}

static void draw_cells(FILE *out, const struct plan *p, const struct grid *g)
{
    for (size_t k = 0; k < p->n_parts; k++) {
        const struct plan_part *part = &p->parts[k];
        for (size_t i = 0; i < part->model->n_units; i++) {
            const struct ats_model_unit *u = &part->model->units[i];
            const char *where = plan_where(part, i);
            const int row = g->row_of_role[u->role];
            if (where == NULL || row < 0) {
                continue;
            }
            const int column = u->layer < 0 ? g->n_columns - 1 : u->layer;
            fprintf(out,
                    "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\">"
                    "<title>%s: %s</title></rect>\n",
                    class_of(where), LEFT + column * CELL, TOP + row * CELL, CELL - GAP, CELL - GAP,
                    u->name, where);
        }
    }
}

static void draw_labels(FILE *out, const struct grid *g)
{
    for (int role = 0; role < ATS_ROLES; role++) {
        if (g->row_of_role[role] >= 0) {
            fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", LEFT - 6,
                    TOP + g->row_of_role[role] * CELL + CELL - 5, role_titles[role]);
        }
    }
    for (int i = 0; i + 1 < g->n_columns; i += 5) {
        fprintf(out, "<text x=\"%d\" y=\"%d\">%d</text>\n", LEFT + i * CELL, TOP - 5, i);
    }
}

static void draw_legend(FILE *out, const struct grid *g)
{
    static const struct {
        const char *class_name;
        const char *text;
    } entries[] = {{"v", "VRAM"}, {"h", "host memory"}, {"p", "in part"}};
    const int y = TOP + g->n_rows * CELL + 14;
    for (int i = 0; i < 3; i++) {
        fprintf(out,
                "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>"
                "<text x=\"%d\" y=\"%d\">%s</text>\n",
                entries[i].class_name, LEFT + i * 120, y, CELL - GAP, CELL - GAP,
                LEFT + i * 120 + CELL + 4, y + CELL - 5, entries[i].text);
    }
}

/* Text of files and users, made safe for XML. */
static void put_text(FILE *out, const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        if (*c == '<' || *c == '&' || *c == '>' || *c == '"') {
            fprintf(out, "&#%d;", *c);
        } else {
            fputc(*c >= ' ' && *c < 127 ? *c : '_', out);
        }
    }
}

static void draw(FILE *out, const struct plan *p)
{
    const struct grid g = measure(p);
    const int own = LEFT + g.n_columns * CELL + 10;
    const int width = own > MIN_WIDTH ? own : MIN_WIDTH;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"11\">\n"
            "<style>text{fill:#222}.v{fill:#2a78b8}.h{fill:#e8a33d}.p{fill:#7d6bb0}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
            "<text x=\"10\" y=\"20\" font-size=\"14\">",
            width, TOP + g.n_rows * CELL + BOTTOM);
    put_text(out,
             p->model->params.name[0] != '\0' ? p->model->params.name : p->options->common.model);
    fprintf(out, " on ");
    put_text(out, p->machine.name);
    fprintf(out, "</text>\n<text x=\"10\" y=\"37\">by layer; predicted: %.4g tokens/s prefill, ",
            plan_speed(&p->prediction, ATS_PREFILL));
    fprintf(out, "%.4g decode</text>\n", plan_speed(&p->prediction, ATS_DECODE));
    draw_labels(out, &g);
    draw_cells(out, p, &g);
    draw_legend(out, &g);
    fprintf(out, "</svg>\n");
}

bool plan_write_svg(const struct plan *p, const char *path, struct ats_error *err)
{
    struct ats_replace file;
    errno = 0;
    bool good = ats_replace_begin(&file, path);
    if (good) {
        draw(file.out, p);
        good = ats_replace_end(&file, ferror(file.out) == 0);
    }
    return good || ats_fail(err, "cannot write the picture %s: %s", path, strerror(errno));
}
