#ifndef RECORD_H
#define RECORD_H

#include <stddef.h>

enum { MAX_NAME = 32, MAX_DEPTH = 8 };

/* Prints all records in data. Returns NULL, or why they are malformed. */
const char *print_records(const unsigned char *data, size_t size, int depth);

#endif
