// packed_log.h: what the log says of packed files (packed_file.h) while they are written and read, which takes minutes for a large model.
#ifndef FD_KERNELS_BACKEND_PACKED_LOG_H
#define FD_KERNELS_BACKEND_PACKED_LOG_H

#include <stdint.h>

// How far it is, every few seconds. *said_us: when that was said last; at first, when it began.
void packed_log_writing(uint64_t *said_us, uint64_t done, uint64_t total);
void packed_log_reading(uint64_t *said_us, uint64_t done, uint64_t total);

// It is done, since began_us. read: returns the time it took in microseconds, at least 1.
void packed_log_written(const char *path, uint64_t bytes, uint64_t began_us);
double packed_log_read(const char *path, uint64_t bytes, uint64_t began_us);

#endif
