/* Forks: what a child finds, and what it does then. */
#pragma once
#include "access.h"
#include "objects.h"
#include "threads.h"

static void take_steps(size_t first, size_t count);

/* What a child finds of the pages of `t`. */
static void inherit(struct territory *t) {
    for (size_t page = 0; page < PAGES; page++) {
        struct page *p = &t->pages[page];
        p->locked = 0;
        if (!p->mapped || p->at_fork == INHERIT) continue;
        if (p->at_fork == OMIT) *p = (struct page){0}; /* never of the file: that has no such advice here */
        else p->tag = p->stamp = p->loose = p->unsure = 0;
    }
    t->locked = 0;
}

static void check_all(struct territory *t) {
    for (size_t page = 0; page < PAGES; page++)
        if (is_readable(&t->pages[page])) check_page(t, page);
    for (size_t nth = 0; nth < OBJECTS; nth++)
        if (t->objects[nth].at) check_object(&t->objects[nth], t->objects[nth].size);
}

static void child_lives(int all, int bare) {
    depth++;
    for (size_t thread = 0; thread < threads; thread++) {
        struct territory *t = &territories[thread];
        if (!all && t != here) continue;
        inherit(t);
        if (t == here ? !one_in(4) : 1) check_all(t);
    }
    /* Its own steps are its parent's next ones, with other dice. */
    size_t first = step_number;
    if (bare) step_write(), step_stamp(), step_scatter();
    else take_steps(first + 1, CHILD_STEPS);
    step_name = "end of a child";
    check_all(here);
}

static void step_fork(void) {
    if (without_fork || depth >= CHILD_DEPTH) return;
    if (__atomic_add_fetch(children, 1, __ATOMIC_SEQ_CST) > CHILDREN) {
        __atomic_sub_fetch(children, 1, __ATOMIC_SEQ_CST);
        return;
    }
    uint64_t how = roll();
    /* A child that the C library does not know of must not use what other threads may have locked. */
    int all = depth == 0 && how % 4 == 0, killed = how % 16 == 5, bare = how % 8 == 3;
    if (all) {
        /* Nobody is in the middle of a step: the child knows what everybody's pages hold. */
        pthread_rwlock_unlock(&world);
        pthread_rwlock_wrlock(&world);
    }
    pid_t child = bare ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (child < 0) fail("fork");
    if (!child) {
        child_lives(all, bare);
        if (how % 16 == 7) execl("/bin/true", "true", NULL);
        _exit(0);
    }
    if (all) {
        pthread_rwlock_unlock(&world);
        pthread_rwlock_rdlock(&world);
    }
    if (killed) {
        usleep((useconds_t)(roll() % 20000));
        kill(child, SIGKILL);
    } else if (how >> 32 & 1) {
        /* Both go on at the same time. */
        for (int round = 0; round < 8; round++) step_scatter(), step_stamp();
    }
    await(child, killed);
    __atomic_sub_fetch(children, 1, __ATOMIC_SEQ_CST);
}
