// Threads for the kernels: `run`, which api.cpp calls for each decode, product and encode. Threads take tasks one by
// one, so that a thread that the system delays takes fewer.
//
// If Python has given the address of torch's OpenMP (`use_threads_of`), its threads are used: they spin for a while
// after each of torch's operators, and threads of our own would have to share the cores with them. Otherwise, and in
// children of fork, where OpenMP would wait for threads that are gone, the threads are our own: started once, and
// asleep in the kernel between calls. Fixed from outside: GOMP_parallel's signature (pages.h). To keep: `inside` rises
// before `wanted` is looked at, one call at a time has the threads (`busy`), and signals stay with Python's threads.
// Tests: tests/tiers/test_pages_kernels.py.
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "pages.h"

namespace pages {
namespace {

constexpr int SPINS = 2000;  // some microseconds: calls of one model follow each other closely

struct Work {
    void (*body)(void*, int64_t) = nullptr;
    void* context = nullptr;
    int64_t tasks = 0;
};

// Never destroyed: its threads may still wait in it when the process ends.
struct Pool {
    std::mutex busy;                      // held for the length of a call
    Work work;                            // written while no worker is inside
    std::atomic<int64_t> next{0};
    std::atomic<uint32_t> generation{0};  // counts calls; workers wait for it to change
    std::atomic<int> wanted{0};           // workers that may still join the call
    std::atomic<int> inside{0};           // workers that have joined and are not done
    int started = 0;
};

Pool* pool = new Pool;
std::atomic<Parallel> torchs{nullptr};

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

void take_tasks(Pool& p) {
    for (;;) {
        int64_t task = p.next.fetch_add(1, std::memory_order_relaxed);
        if (task >= p.work.tasks) return;
        p.work.body(p.work.context, task);
    }
}

void join_call(Pool& p) {
    // `inside` rises before `wanted` is looked at: the caller closes `wanted` first, then waits for `inside` to be 0.
    p.inside.fetch_add(1);
    int left = p.wanted.load();
    while (left > 0 && !p.wanted.compare_exchange_weak(left, left - 1)) {
    }
    if (left > 0) take_tasks(p);
    if (p.inside.fetch_sub(1) == 1) p.inside.notify_all();
}

void worker(Pool* p) {
    uint32_t seen = 0;
    for (;;) {
        for (int spin = 0; spin < SPINS && p->generation.load() == seen; ++spin) pause();
        p->generation.wait(seen);
        seen = p->generation.load();
        join_call(*p);
    }
}

// A child of fork has none of these threads, and perhaps a lock that nobody will release.
void forget() {
    pool = new Pool;
    torchs.store(nullptr);
}

[[maybe_unused]] const int watched = pthread_atfork(nullptr, nullptr, forget);

void start_workers(Pool& p, int count) {
    for (; p.started < count; ++p.started) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads of Python
        std::thread(worker, &p).detach();
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
}

}  // namespace

void use_threads_of(Parallel parallel) { torchs.store(parallel); }

void run(int threads, int64_t tasks, void (*body)(void*, int64_t), void* context) {
    Pool& p = *pool;
    std::unique_lock<std::mutex> mine(p.busy, std::defer_lock);
    // If another thread of the program is in here, this one works alone instead of waiting.
    if (threads <= 1 || tasks <= 1 || !mine.try_lock()) {
        for (int64_t task = 0; task < tasks; ++task) body(context, task);
        return;
    }
    p.work = {body, context, tasks};
    p.next.store(0);
    if (Parallel parallel = torchs.load()) {
        parallel([](void* it) { take_tasks(*static_cast<Pool*>(it)); }, &p, unsigned(threads), 0);
        return;
    }
    start_workers(p, threads - 1);
    p.wanted.store(threads - 1);
    p.generation.fetch_add(1);
    p.generation.notify_all();
    take_tasks(p);
    p.wanted.store(0);
    for (int inside = p.inside.load(); inside != 0; inside = p.inside.load()) {
        for (int spin = 0; spin < SPINS && p.inside.load() == inside; ++spin) pause();
        p.inside.wait(inside);
    }
}

}  // namespace pages
