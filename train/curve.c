#include "curve.h"

#include "base/replace.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { WIDTH = 720, HEIGHT = 360, LEFT = 56, RIGHT = 16, TOP = 36, BOTTOM = 44 };

struct scale {
    double tokens; /* at the right edge */
    double low;    /* nats, at the bottom */
    double high;   /* at the top */
};

static double place_x(const struct scale *scale, double tokens)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * tokens / scale->tokens;
}

static double place_y(const struct scale *scale, double loss)
{
    const double share = (loss - scale->low) / (scale->high - scale->low);
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * fmin(1.0, fmax(0.0, share));
}

/* Whole nats around what is shown. */
static struct scale find_scale(const struct run *run, double tokens_per_step)
{
    double low = INFINITY;
    double high = 0.0;
    for (size_t i = 0; i < run->n_points; i++) {
        const struct run_point *p = &run->points[i];
        const double least =
            p->held_out >= 0.0f ? fmin((double)p->loss, (double)p->held_out) : (double)p->loss;
        low = fmin(low, least);
        high = fmax(high, (double)p->loss);
    }
    struct scale scale = {.tokens = fmax(1.0, (double)run->options.adamw.steps * tokens_per_step)};
    scale.low = isfinite(low) ? floor(low) : 0.0;
    scale.high = fmax(ceil(high), scale.low + 1.0);
    return scale;
}

/* The largest of 1, 2, 5 times a power of ten with at least four steps up to `end`. */
static double tick_step(double end)
{
    const double power = pow(10.0, floor(log10(end)));
    const double factors[] = {2.0, 1.0, 0.5, 0.2};
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) {
        if (end / (power * factors[i]) >= 4.0) {
            return power * factors[i];
        }
    }
    return power * 0.1;
}

static void draw_axes(FILE *out, const struct scale *scale)
{
    for (int nats = (int)scale->low; nats <= (int)scale->high; nats++) {
        const double y = nats;
        fprintf(out,
                "<path d='M%d %.1fH%d' stroke='#ddd'/>"
                "<text x='%d' y='%.1f' text-anchor='end'>%.0f</text>\n",
                LEFT, place_y(scale, y), WIDTH - RIGHT, LEFT - 8, place_y(scale, y) + 4.0, y);
    }
    const double step = tick_step(scale->tokens);
    for (int i = 0; i * step <= scale->tokens; i++) {
        const double x = place_x(scale, i * step);
        fprintf(out,
                "<path d='M%.1f %dv5' stroke='#888'/>"
                "<text x='%.1f' y='%d' text-anchor='middle'>%g</text>\n",
                x, HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 19, i * step / 1e6);
    }
    fprintf(out,
            "<path d='M%d %dV%dH%d' fill='none' stroke='#888'/>\n"
            "<text x='%d' y='%d' text-anchor='middle'>million tokens seen</text>\n"
            "<text x='%d' y='20'>loss, nats per token: </text>\n"
            "<text x='%d' y='20' fill='#2563a8'>training</text>\n"
            "<text x='%d' y='20' fill='#c2410c'>held-out text</text>\n",
            LEFT, TOP, HEIGHT - BOTTOM, WIDTH - RIGHT, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, LEFT,
            LEFT + 140, LEFT + 200);
}

static void draw_points(FILE *out, const struct run *run, const struct scale *scale,
                        double tokens_per_step)
{
    fprintf(out, "<path fill='none' stroke='#2563a8' d='");
    for (size_t i = 0; i < run->n_points; i++) {
        const struct run_point *p = &run->points[i];
        fprintf(out, "%s%.1f %.1f", i == 0 ? "M" : "L", place_x(scale, p->step * tokens_per_step),
                place_y(scale, (double)p->loss));
    }
    fprintf(out, "'/>\n<g fill='#c2410c'>\n");
    for (size_t i = 0; i < run->n_points; i++) {
        const struct run_point *p = &run->points[i];
        if (p->held_out >= 0.0f) {
            fprintf(out, "<circle cx='%.1f' cy='%.1f' r='2.5'/>\n",
                    place_x(scale, p->step * tokens_per_step), place_y(scale, (double)p->held_out));
        }
    }
    fprintf(out, "</g>\n");
}

bool curve_save(const struct run *run, const char *path, struct ats_error *err)
{
    struct ats_replace file;
    if (!ats_replace_begin(&file, path)) {
        return ats_fail(err, "cannot write %s: %s", path, strerror(errno));
    }
    const double tokens_per_step =
        (double)run->options.windows * (double)run->options.shape.context;
    const struct scale scale = find_scale(run, tokens_per_step);
    fprintf(file.out,
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' font-family='sans-serif' "
            "font-size='12' fill='#444'>\n<rect width='100%%' height='100%%' fill='#fff'/>\n",
            WIDTH, HEIGHT);
    draw_axes(file.out, &scale);
    draw_points(file.out, run, &scale, tokens_per_step);
    fprintf(file.out, "</svg>\n");
    return ats_replace_end(&file, true) ||
           ats_fail(err, "cannot write %s: %s", path, strerror(errno));
}
