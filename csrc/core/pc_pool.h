/* One parallel loop over independent tasks. */
#ifndef PRECOMP_PC_POOL_H
#define PRECOMP_PC_POOL_H

#include <stddef.h>

#include "pc_error.h"

#define PC_MAX_WORKERS 64

/* Does task *index* of *context*. *worker* (< the number of workers) names the thread
   that runs it, for scratch memory that needs no lock. Fills *error* when it fails. */
typedef pc_status (*pc_task)(void *context, size_t worker, size_t index,
                             pc_error *error);

/* How many workers to use: *threads*, or when it is 0 one per usable processor, but no
   more than one for *grain* units of the *work*, than *count*, or than PC_MAX_WORKERS.
   At least 1. */
size_t pc_pool_workers(size_t threads, size_t count, size_t work, size_t grain);

/* Runs tasks 0..count-1 with *workers* threads, the caller's among them. After a task
   failed no new one starts; *error* is that of the failed task with the lowest index.
   A thread that cannot be started is done without. */
pc_status pc_pool_run(size_t workers, size_t count, pc_task task, void *context,
                      pc_error *error);

#endif
