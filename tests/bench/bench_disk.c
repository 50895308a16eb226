// bench_disk.c: bench_disk FILE: how fast the disk reads a file past the page cache, through the queue that weights are read with: by io_uring, and by
// threads beside it, in turns.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/disk/disk.h"
#include "tests/bench/report.h"

enum { PASSES = 3, HUGE_PAGE = 2 << 20, OUT = 3 };
#define READ_BYTES (32ull << 20)
#define PASS_BYTES (256ull << 20)

// Reads up to PASS_BYTES of the file, OUT reads at a time. Returns MB/s.
static double pass(struct disk_queue *queue, int file, uint64_t bytes, unsigned char *memory)
{
    const uint32_t count = (uint32_t)(MIN(bytes, PASS_BYTES) / READ_BYTES);
    struct disk_read reads[OUT];
    uint64_t began_ns = clock_now_ns();
    struct error error;

    for (uint32_t i = 0; i < count + OUT; i++) {
        struct disk_read *read = &reads[i % OUT];
        if (i >= OUT && i - OUT < count) {
            disk_queue_wait(queue, read);
            if (disk_read_status(read, "file", &error)) {
                fprintf(stderr, "%s\n", error.text);
                exit(1);
            }
        }
        if (i >= count)
            continue;
        *read = (struct disk_read){
            .descriptor = file, .offset = i * READ_BYTES, .bytes = READ_BYTES, .memory = memory + i % OUT * READ_BYTES};
        disk_queue_read(queue, read);
    }
    return (double)count * READ_BYTES / ((double)(clock_now_ns() - began_ns) * 1e-9) / 1e6;
}

int main(int argc, char **argv)
{
    struct report_passes passes = {0};
    struct disk_queue *uring, *threads;
    struct error error;
    struct stat info;

    if (argc != 2) {
        fprintf(stderr, "usage: bench_disk FILE\n");
        return 2;
    }
    int file = open(argv[1], O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (file < 0 || fstat(file, &info) || (uint64_t)info.st_size < READ_BYTES) {
        fprintf(stderr, "%s: no file of at least %llu MiB that can be read with O_DIRECT\n", argv[1], READ_BYTES >> 20);
        return 1;
    }
    unsigned char *memory = aligned_alloc(HUGE_PAGE, OUT * READ_BYTES); // as weights are read: into huge pages that are there
    if (!memory || disk_queue_open(&(struct disk_config){.method = DISK_THREADS}, &threads, &error) ||
        disk_queue_open(&(struct disk_config){.method = DISK_URING}, &uring, &error)) {
        fprintf(stderr, "%s\n", memory ? error.text : "no memory");
        return 1;
    }
    madvise(memory, OUT * READ_BYTES, MADV_HUGEPAGE);
    memset(memory, 1, OUT * READ_BYTES);
    for (uint32_t i = 0; i < PASSES; i++) {
        double by_uring = pass(uring, file, (uint64_t)info.st_size, memory);
        report_pass(&passes, pass(threads, file, (uint64_t)info.st_size, memory), by_uring);
    }
    report_figure("disk read by threads beside io_uring, MB/s", "MB/s", &passes, 0.95);
    disk_queue_close(uring);
    disk_queue_close(threads);
    free(memory);
    close(file);
    return 0;
}
