// cuda_check.c: what the device answers: errors, which end the process, and events that are polled.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/log.h"
#include "kernels/cuda/cuda.h"

void cuda_die(const char *format, ...)
{
    char text[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    log_error("DEVICE-FAILED", "why=\"%s\" what=\"this s-part ends, and goes on when it is started again\"", text);
    _exit(EXIT_FAILURE); // no handlers: they might wait for what does not come
}

void cuda_must(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        cuda_die("%s: %s", what, cudaGetErrorString(error));
}

bool cuda_has_come(cudaEvent_t event, const char *what)
{
    cudaError_t error = cudaEventQuery(event);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError(); // it is no error, and must not be taken for that of a launch
        return false;
    }
    cuda_must(error, what);
    return true;
}

void cuda_queued(struct backend_batch *batch, const char *what)
{
    cuda_must(cudaGetLastError(), what);
    cuda_must(cudaEventRecord(batch->event, batch->stream), what);
}
