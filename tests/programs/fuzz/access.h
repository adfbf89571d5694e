/* Steps that read and write. */
#pragma once
#include "contents.h"
#include "ranges.h"

static void step_write(void) {
    size_t first, count = find_run(is_writable, wanted_pages(), 0, &first);
    for (size_t page = first; page < first + count; page++) write_page(page);
}

static void step_stamp(void) {
    size_t first, count = find_run(is_writable, wanted_pages(), 0, &first);
    for (size_t page = first; page < first + count; page += 1 + below(4)) stamp_page(page);
}

static void step_check(void) {
    size_t first, count = find_run(is_readable, wanted_pages(), 0, &first);
    for (size_t page = first; page < first + count; page++) check_page(here, page);
}

static void step_scatter(void) {
    for (size_t round = 0; round < 64; round++) {
        size_t page = below(PAGES);
        if (is_readable(&here->pages[page])) check_page(here, page);
        if (is_writable(&here->pages[page]) && one_in(3)) stamp_page(page);
    }
}

static void step_sweep(void) {
    int back = one_in(2);
    for (size_t nth = 0; nth < PAGES; nth++) {
        size_t page = back ? PAGES - 1 - nth : nth;
        if (is_readable(&here->pages[page])) check_page(here, page);
    }
}
