/* Options of a test program, as a table that ends with an empty line.
 *
 *   static const struct program_option table[] = {NUMBER("--mib", &mib), SWITCH("--raw", &raw), {0}};
 *   read_options("usage: ...", table, argc, argv);
 *
 * An unknown option, one without its value and a value that is none end the program with status 2. */
#pragma once
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct program_option {
    const char *name;
    uint64_t *number;
    int *on;              /* a switch: takes no value */
    size_t *pages;        /* the value is a number of MiB */
    const char **text;
    int *choice;          /* which of `words` the value is */
    const char *words[8]; /* ends with a null pointer */
};
#define NUMBER(option, into) {.name = option, .number = into}
#define SWITCH(option, into) {.name = option, .on = into}
#define MIB(option, into) {.name = option, .pages = into}
#define TEXT(option, into) {.name = option, .text = into}
#define CHOICE(option, into, ...) {.name = option, .choice = into, .words = {__VA_ARGS__}}

static inline void usage(const char *synopsis, int status) {
    fprintf(status ? stderr : stdout, "%s\n", synopsis);
    exit(status);
}

static inline uint64_t number_of(const char *synopsis, const char *text) {
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 0);
    if (*text < '0' || *text > '9' || *end || errno) usage(synopsis, 2);
    return value;
}

static inline void read_option(const char *synopsis, const struct program_option *option, const char *value) {
    if (option->text) *option->text = value;
    if (option->number) *option->number = number_of(synopsis, value);
    if (option->pages) *option->pages = number_of(synopsis, value) * 256;
    if (!option->choice) return;
    int word = 0;
    while (option->words[word] && strcmp(option->words[word], value)) word++;
    if (!option->words[word]) usage(synopsis, 2);
    *option->choice = word;
}

static inline void read_options(const char *synopsis, const struct program_option *table, int count, char **words) {
    for (int nth = 1; nth < count; nth++) {
        if (!strcmp(words[nth], "--help")) usage(synopsis, 0);
        const struct program_option *option = table;
        while (option->name && strcmp(option->name, words[nth])) option++;
        if (!option->name) usage(synopsis, 2);
        if (option->on) {
            *option->on = 1;
            continue;
        }
        if (++nth == count) usage(synopsis, 2);
        read_option(synopsis, option, words[nth]);
    }
}
