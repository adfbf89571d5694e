/* Which step is taken: drawn by weight, unless it is left out. */
#pragma once
#include "access.h"
#include "advice.h"
#include "forks.h"
#include "mappings.h"
#include "objects.h"
#include "shared.h"
#include "threads.h"
#include "transfers.h"

static const struct {
    const char *name;
    void (*take)(void);
    unsigned weight;
} kinds[] = {
    {"write", step_write, 16},     {"stamp", step_stamp, 12},     {"check", step_check, 12},     {"scatter", step_scatter, 10},
    {"sweep", step_sweep, 2},      {"map", step_map, 10},         {"unmap", step_unmap, 3},      {"protect", step_protect, 6},
    {"drop", step_drop, 4},        {"free", step_free, 3},        {"advise", step_advise, 8},    {"remove", step_remove, 1},
    {"populate", step_populate, 3}, {"at fork", step_at_fork, 3}, {"lock", step_lock, 2},        {"unlock", step_unlock, 2},
    {"move", step_move, 6},        {"grow", step_grow, 4},        {"shrink", step_shrink, 3},    {"trespass", step_trespass, 3},
    {"pipe", step_pipe, 4},        {"file", step_file, 4},        {"process", step_process, 3},  {"random", step_random, 1},
    {"refusal", step_kernel_refuses, 2}, {"mincore", step_mincore, 2}, {"object", step_object, 24}, {"shared", step_shared, 8},
    {"shared advice", step_shared_advice, 3}, {"signal", step_signal, 3}, {"thread", step_thread, 3}, {"program", step_program, 1},
    {"fork", step_fork, 2},
};

static int is_kept(size_t number) { return !keeping || kept[number / 8] >> number % 8 & 1; }

static void take_step(size_t number) {
    unsigned total = 0;
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) total += kinds[kind].weight;
    dice = mix(seed * 0x100000001b3u + number * 8 + (uint64_t)depth);
    unsigned drawn = (unsigned)below(total);
    size_t kind = 0;
    while (drawn >= kinds[kind].weight) drawn -= kinds[kind++].weight;
    step_number = number, step_name = kinds[kind].name;
    if (printing) fprintf(stderr, "%zu depth %d pid %d %s\n", number, depth, getpid(), step_name);
    if (!depth) pthread_rwlock_rdlock(&world);
    kinds[kind].take();
    if (!depth) pthread_rwlock_unlock(&world);
}

static void take_steps(size_t first, size_t count) {
    size_t end = ((size_t)(here - territories) + 1) * steps;
    for (size_t number = first; number < first + count && number < end; number++)
        if (is_kept(number)) take_step(number);
}
