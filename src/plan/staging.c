#include "plan/staging.h"

/* `n` times the size, at most `room`. */
static size_t times(size_t size, unsigned n, size_t room)
{
    return size > room / n ? room : n * size;
}

size_t ats_staging_size(const struct ats_staging_need *need, size_t budget, unsigned places)
{
    enum { MOST_OF_BUDGET = 3, SMALL_PART_OF_BUDGET = 64, PIECES_PER_PLACE = 2 };
    /* without it the ring holds one large weight and a few small ones, and nothing overlaps */
    const size_t enough = (size_t)4 << 20;
    const size_t part = budget / SMALL_PART_OF_BUDGET;
    const size_t between = part < enough ? part : enough;
    const size_t room = budget / MOST_OF_BUDGET - between;
    const size_t whole = times(need->whole, places, room);
    const size_t pieces = times(need->piece, places * PIECES_PER_PLACE, room);
    return (whole > pieces ? whole : pieces) + between;
}

static bool overlap(const struct ats_staged *a, size_t begin, size_t end)
{
    return a->offset < end && begin < a->offset + a->bytes;
}

/* The first earlier weight in [begin, end) that is still to be read when staged[i] is needed;
 * n if there is none. */
static size_t find_live(const struct ats_staged *staged, size_t i, size_t begin, size_t end)
{
    for (size_t j = i; j-- > 0;) {
        if (staged[j].last_split >= staged[i].first_split && overlap(&staged[j], begin, end)) {
            return j;
        }
    }
    return i;
}

/* The weight that was read last of those whose bytes staged[i] takes over. */
static int32_t find_last_reader(const struct ats_staged *staged, size_t i)
{
    const size_t begin = staged[i].offset;
    const size_t end = begin + staged[i].bytes;
    int32_t after = ATS_STAGED_AT_ONCE;
    for (size_t j = i; j-- > 0;) {
        if (overlap(&staged[j], begin, end) &&
            (after < 0 || staged[j].last_split > staged[after].last_split)) {
            after = (int32_t)j;
        }
    }
    return after;
}

bool ats_staging_assign(struct ats_staged *staged, size_t n, size_t capacity, size_t alignment)
{
    size_t head = 0;
    for (size_t i = 0; i < n; i++) {
        if (staged[i].bytes > capacity) {
            return false;
        }
        bool wrapped = false;
        bool placed = false;
        while (!placed) {
            if (staged[i].bytes > capacity - head) {
                if (wrapped) {
                    return false;
                }
                wrapped = true;
                head = 0;
            }
            const size_t live = find_live(staged, i, head, head + staged[i].bytes);
            placed = live == i;
            if (!placed) {
                head = staged[live].offset + staged[live].bytes;
                head = (head + alignment - 1) / alignment * alignment;
                head = head < capacity ? head : capacity;
            }
        }
        staged[i].offset = head;
        staged[i].after = find_last_reader(staged, i);
        head = (head + staged[i].bytes + alignment - 1) / alignment * alignment;
        head = head < capacity ? head : capacity;
    }
    return true;
}
