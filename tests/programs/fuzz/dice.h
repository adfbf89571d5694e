/* Numbers that follow from the seed and the number of a step. */
#pragma once
#include "model.h"

static uint64_t roll(void) {
    dice += 0x9e3779b97f4a7c15u;
    return mix(dice);
}
static size_t below(size_t limit) { return roll() % limit; }
/* One in `count`. */
static int one_in(size_t count) { return below(count) == 0; }
/* Small numbers more often than large ones. */
static size_t wanted_pages(void) {
    size_t most = (size_t)1 << below(11);
    size_t pages = 1 + below(most);
    return pages < WANTED_MAX ? pages : WANTED_MAX;
}
