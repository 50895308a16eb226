// priority.h: what the kernel's scheduler is asked for the calling thread. A kernel that refuses leaves it as it was: that is slower, not wrong.
#ifndef FD_BASE_PRIORITY_H
#define FD_BASE_PRIORITY_H

// For a thread that works for some microseconds at a time and that others wait for: when it wakes, it runs before threads that compute for long.
// Its share of the processor stays the same.
void priority_short_turns(void);

#endif
