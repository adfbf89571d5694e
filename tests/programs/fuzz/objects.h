/* Objects from malloc. */
#pragma once
#include "contents.h"
#include "dice.h"

static uint64_t object_word(const struct object *object, size_t word) { return base_word(object->tag, word % 4093); }

static void fill_object(struct object *object, size_t from_byte) {
    for (size_t word = from_byte / 8; word < object->size / 8; word++) ((uint64_t *)(void *)object->at)[word] = object_word(object, word);
}

static void check_object(const struct object *object, size_t bytes) {
    for (size_t word = 0; word < bytes / 8; word++) {
        uint64_t found = ((volatile uint64_t *)(void *)object->at)[word];
        if (found != object_word(object, word))
            wrong_step("object of %zu bytes at %p, word %zu: expected %" PRIx64 ", found %" PRIx64, object->size, (void *)object->at, word, object_word(object, word), found);
    }
}

static void step_object(void) {
    struct object *object = &here->objects[below(OBJECTS)];
    size_t size = (16 + below((size_t)32 << below(17))) & ~(size_t)7;
    if (object->at) check_object(object, object->size);
    if (object->at && one_in(3)) {
        free(object->at);
        *object = (struct object){0};
        return;
    }
    if (object->at) {
        size_t before = object->size;
        char *new = realloc(object->at, size);
        if (!new) wrong_step("realloc of %zu bytes: %s", size, strerror(errno));
        object->at = new, object->size = size;
        check_object(object, before < size ? before : size);
        fill_object(object, before < size ? before : size);
        return;
    }
    int zeroed = one_in(3);
    size_t alignment = (size_t)16 << below(9);
    void *new = NULL;
    if (zeroed) new = calloc(1, size);
    else if (one_in(2)) new = malloc(size), alignment = 16;
    else if (posix_memalign(&new, alignment, size)) new = NULL;
    if (!new) wrong_step("an object of %zu bytes: %s", size, strerror(errno));
    if (!zeroed && (uintptr_t)new % alignment) wrong_step("an object of alignment %zu at %p", alignment, new);
    *object = (struct object){new, size, ++here->tags | (uint32_t)(here - territories) << 28};
    if (zeroed) {
        uint32_t tag = object->tag;
        object->tag = 0;
        check_object(object, size);
        object->tag = tag;
    }
    fill_object(object, 0);
}
