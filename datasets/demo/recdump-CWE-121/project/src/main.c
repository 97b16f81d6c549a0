#include "record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 1 << 20 };

static int fail(const char *reason)
{
    fflush(stdout);
    fprintf(stderr, "error: %s\n", reason);
    return 2;
}

static int dump(FILE *file)
{
    static unsigned char data[MAX_FILE + 1];
    size_t size = fread(data, 1, sizeof data, file);
    if (ferror(file))
        return fail("cannot read the file");
    if (size > MAX_FILE)
        return fail("file too large");
    if (size < 4 || memcmp(data, "LBX1", 4) != 0)
        return fail("not an LBX file");
    const char *reason = print_records(data + 4, size - 4, 0);
    return reason ? fail(reason) : 0;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fputs("usage: recdump FILE\n", stderr);
        return 1;
    }
    FILE *file = fopen(argv[1], "rb");
    if (!file)
        return fail("cannot open the file");
    int code = dump(file);
    fclose(file);
    return code;
}
