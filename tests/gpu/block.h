/*
 * What CUDA's language has and C has not, for the kernel's source on a CPU:
 * test_kernel.c compiles both together. Blocks run one after the other; a
 * block's threads take turns on stacks of their own, each until it waits for
 * the block (__syncthreads) or for its warp (a shuffle).
 */
#pragma once

#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __device__
#define __global__
#define __forceinline__ static
#define __launch_bounds__(n)
#define __shared__ static
#define __syncthreads() block_stop(BLOCK_ALL)

enum { BLOCK_THREADS = 256, BLOCK_STACK = 32 << 10 };

typedef struct {
    unsigned x, y, z, w;
} __attribute__((aligned(16))) uint4;

static struct {
    unsigned x;
} threadIdx, blockIdx, blockDim, gridDim;

typedef enum { BLOCK_GO, BLOCK_WARP, BLOCK_ALL, BLOCK_DONE } block_state_t;

typedef struct {
    ucontext_t context;
    block_state_t state;
    unsigned word[2], turn; /* for shuffles: the last two */
    char stack[BLOCK_STACK] __attribute__((aligned(16)));
} block_thread_t;

static block_thread_t *block_threads;
static ucontext_t block_home;
static void (*block_main)(void);

static void block_stop(block_state_t state)
{
    block_thread_t *t = &block_threads[threadIdx.x];

    t->state = state;
    swapcontext(&t->context, &block_home);
}

static unsigned __shfl_xor_sync(unsigned mask, unsigned value, int lanes)
{
    block_thread_t *t = &block_threads[threadIdx.x];
    unsigned turn = t->turn++ % 2;

    (void)mask;
    t->word[turn] = value;
    block_stop(BLOCK_WARP);
    return block_threads[threadIdx.x ^ (unsigned)lanes].word[turn];
}

static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    uint4 v = {x, y, z, w};

    return v;
}

static void atomicXor(unsigned *p, unsigned v)
{
    *p ^= v;
}

static void block_thread(void)
{
    block_main();
    block_threads[threadIdx.x].state = BLOCK_DONE;
}

/* Lets those go on that all have come for: a warp, or the block. */
static int block_release(unsigned first, unsigned count, block_state_t state)
{
    for (unsigned i = first; i < first + count; i++) {
        if (block_threads[i].state != state) {
            return 0;
        }
    }
    for (unsigned i = first; i < first + count; i++) {
        block_threads[i].state = BLOCK_GO;
    }
    return 1;
}

/* Runs a block of all threads. 0: some wait for others that never come. */
static int block_run(void)
{
    int left = 1;

    for (unsigned i = 0; i < BLOCK_THREADS; i++) {
        block_thread_t *t = &block_threads[i];

        getcontext(&t->context);
        t->context.uc_stack.ss_sp = t->stack;
        t->context.uc_stack.ss_size = sizeof(t->stack);
        t->context.uc_link = &block_home;
        makecontext(&t->context, block_thread, 0);
        t->state = BLOCK_GO;
        t->turn = 0;
    }
    while (left) {
        left = 0;
        for (unsigned i = 0; i < BLOCK_THREADS; i++) {
            threadIdx.x = i;
            if (block_threads[i].state == BLOCK_GO) {
                swapcontext(&block_home, &block_threads[i].context);
            }
        }
        for (unsigned i = 0; i < BLOCK_THREADS; i += 32) {
            left |= block_release(i, 32, BLOCK_WARP);
        }
        left |= block_release(0, BLOCK_THREADS, BLOCK_ALL);
    }
    return block_release(0, BLOCK_THREADS, BLOCK_DONE);
}
