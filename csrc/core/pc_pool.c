/* One parallel loop over independent tasks. */
#include "pc_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct {
    pc_task task;
    void *context; /* borrowed */
    size_t count;
    _Atomic size_t next;
    _Atomic bool failed;
    pthread_mutex_t lock; /* of the two below */
    size_t failed_index;
    pc_error *error; /* borrowed */
} pool;

typedef struct {
    pool *shared; /* borrowed */
    size_t worker;
} pool_member;

static void *
work(void *argument)
{
    pool_member *self = argument;
    pool *shared = self->shared;
    while (!atomic_load(&shared->failed)) {
        size_t index = atomic_fetch_add(&shared->next, 1);
        pc_error error;
        if (index >= shared->count) {
            break;
        }
        if (shared->task(shared->context, self->worker, index, &error) == PC_OK) {
            continue;
        }
        pthread_mutex_lock(&shared->lock);
        if (!atomic_load(&shared->failed) || index < shared->failed_index) {
            shared->failed_index = index;
            *shared->error = error;
        }
        atomic_store(&shared->failed, true);
        pthread_mutex_unlock(&shared->lock);
    }
    return NULL;
}

size_t
pc_pool_workers(size_t threads, size_t count, size_t work_size, size_t grain)
{
    cpu_set_t usable;
    size_t limit = work_size / grain + 1;
    if (threads == 0) {
        threads = 1;
        if (sched_getaffinity(0, sizeof(usable), &usable) == 0) {
            threads = (size_t)CPU_COUNT(&usable);
        }
    }
    threads = threads < limit ? threads : limit;
    threads = threads < count ? threads : count;
    threads = threads < PC_MAX_WORKERS ? threads : PC_MAX_WORKERS;
    return threads > 0 ? threads : 1;
}

pc_status
pc_pool_run(size_t workers, size_t count, pc_task task, void *context, pc_error *error)
{
    pool shared = {.task = task, .context = context, .count = count, .error = error};
    pool_member members[PC_MAX_WORKERS];
    pthread_t threads[PC_MAX_WORKERS];
    size_t started = 1; /* the caller is worker 0 */
    sigset_t all;
    sigset_t before;

    if (pthread_mutex_init(&shared.lock, NULL) != 0) {
        return pc_fail(error, PC_NO_MEMORY, "no memory for a lock");
    }
    members[0] = (pool_member){&shared, 0};
    /* Signals stay with the threads of the program. */
    sigfillset(&all);
    bool masked = pthread_sigmask(SIG_SETMASK, &all, &before) == 0;
    while (started < workers) {
        members[started] = (pool_member){&shared, started};
        if (pthread_create(&threads[started], NULL, work, &members[started]) != 0) {
            break;
        }
        started++;
    }
    if (masked) {
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    work(&members[0]);
    for (size_t i = 1; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
    pthread_mutex_destroy(&shared.lock);
    return atomic_load(&shared.failed) ? error->status : PC_OK;
}
