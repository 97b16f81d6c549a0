#include "record.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum type { LABEL = 1, NUMBER = 2, GROUP = 3, ALIAS = 4 };

static void indent(int depth)
{
    for (int i = 0; i < depth; i++)
        fputs("  ", stdout);
}

/* Copies a name out of a payload and ends it with NUL. */
static const char *read_name(char *name, const unsigned char *data, size_t size)
{
    if (size == 0)
        return "empty name";
    for (size_t i = 0; i < size; i++)
        if (!isprint(data[i]))
            return "name with an unprintable byte";
    memcpy(name, data, size);
    name[size] = '\0';
    return NULL;
}

static const char *print_label(const unsigned char *data, size_t size, int depth)
{
    char name[MAX_NAME];
    const char *reason = read_name(name, data, size);
    if (reason)
        return reason;
    indent(depth);
    printf("label %s\n", name);
    return NULL;
}

static const char *print_number(const unsigned char *data, size_t size, int depth)
{
    unsigned long long value = 0;
    if (size == 0 || size > sizeof value)
        return "number of a wrong size";
    for (size_t i = 0; i < size; i++)
        value = value << 8 | data[i];
    indent(depth);
    printf("number %llu\n", value);
    return NULL;
}

static const char *print_group(const unsigned char *data, size_t size, int depth)
{
    if (depth == MAX_DEPTH)
        return "groups nested too deep";
    indent(depth);
    puts("group {");
    const char *reason = print_records(data, size, depth + 1);
    if (reason)
        return reason;
    indent(depth);
    puts("}");
    return NULL;
}

static const char *print_alias(const unsigned char *data, size_t size, int depth)
{
    char name[MAX_NAME];
    if (size == 0)
        return "empty alias";
    const char *reason = read_name(name, data + 1, size - 1);
    if (reason)
        return reason;
    indent(depth);
    printf("alias %u %s\n", data[0], name);
    return NULL;
}

static const char *print_record(enum type type, const unsigned char *data, size_t size, int depth)
{
    switch (type) {
    case LABEL:
        return print_label(data, size, depth);
    case NUMBER:
        return print_number(data, size, depth);
    case GROUP:
        return print_group(data, size, depth);
    case ALIAS:
        return print_alias(data, size, depth);
    default:
        return "unknown type";
    }
}

const char *print_records(const unsigned char *data, size_t size, int depth)
{
    while (size > 0) {
        if (size < 2 || size - 2 < data[1])
            return "record cut off";
        size_t length = data[1];
        const char *reason = print_record(data[0], data + 2, length, depth);
        if (reason)
            return reason;
        data += 2 + length;
        size -= 2 + length;
    }
    return NULL;
}
