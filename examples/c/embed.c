/* A model that fuser compiled, run from C: no Python, no library but libc.

       fuser compile minilm.onnx --emit object --name model --dim batch=4 --dim sequence=9 -o out
       cc -O2 -ffp-contract=off -pthread -Iout examples/c/embed.c out/model.o -lm -o embed
       ./embed out/model.weights embeddings.bin input_ids.bin attention_mask.bin token_type_ids.bin

   Each input is a file of its bytes, in the order of model_inputs. The last output, rows of float,
   is written to the second file; the cosines of its first row and the others are printed. Threads
   are this program's: two here, none with THREADS=1. */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model.h"

#define MOST_THREADS 8

static void fail(const char *what) {
    perror(what);
    exit(1);
}

/* A file in memory, of exactly these bytes: its own pages, shared with every process that maps it. */
static const void *map_file(const char *path, int64_t bytes) {
    struct stat status;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &status)) fail(path);
    if (status.st_size != bytes) {
        fprintf(stderr, "%s has %lld bytes, not %lld\n", path, (long long)status.st_size,
                (long long)bytes);
        exit(1);
    }
    if (!bytes) return "";
    const void *held = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, file, 0);
    if (held == MAP_FAILED) fail(path);
    close(file);
    return held;
}

static void *memory(int64_t bytes) {
    void *held = NULL;
    if (posix_memalign(&held, MODEL_ALIGNMENT, (size_t)(bytes ? bytes : 1))) fail("memory");
    return held;
}

/* The simplest threads that there are: new ones for each launch. A service would keep a pool. */
struct work {
    model_task *task;
    void *state;
    int64_t chunks;
    atomic_llong next;
    atomic_llong threads;
};

static void *worker(void *given) {
    struct work *work = given;
    int64_t thread = atomic_fetch_add(&work->threads, 1), chunk;
    while ((chunk = atomic_fetch_add(&work->next, 1)) < work->chunks)
        work->task(work->state, chunk, thread);
    return NULL;
}

static void spread(void *user, model_task *task, void *state, int64_t chunks) {
    int64_t threads = *(int64_t *)user;
    struct work work = {task, state, chunks, 0, 0};
    pthread_t others[MOST_THREADS];
    int64_t started = 0;
    while (started < threads - 1 && !pthread_create(&others[started], NULL, worker, &work))
        started++;
    worker(&work);
    for (int64_t i = 0; i < started; i++) pthread_join(others[i], NULL);
}

static double dot(const float *a, const float *b, int64_t size) {
    double sum = 0;
    for (int64_t i = 0; i < size; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

int main(int count, char **arguments) {
    if (count != 3 + MODEL_INPUTS) {
        fprintf(stderr, "usage: %s WEIGHTS RESULT INPUT...; the inputs are\n", arguments[0]);
        for (int i = 0; i < MODEL_INPUTS; i++)
            fprintf(stderr, "  %s, %s, %lld bytes\n", model_inputs[i].name, model_inputs[i].dtype,
                    (long long)model_inputs[i].bytes);
        return 2;
    }
    const char *wish = getenv("THREADS");
    int64_t threads = wish ? atoi(wish) : 2;
    if (threads < 1 || threads > MOST_THREADS) threads = 1;
    const void *weights = map_file(arguments[1], MODEL_WEIGHTS_BYTES);
    const void *inputs[MODEL_INPUTS + 1];
    void *outputs[MODEL_OUTPUTS];
    for (int i = 0; i < MODEL_INPUTS; i++)
        inputs[i] = map_file(arguments[3 + i], model_inputs[i].bytes);
    for (int i = 0; i < MODEL_OUTPUTS; i++) outputs[i] = memory(model_outputs[i].bytes);
    void *workspace = memory(MODEL_WORKSPACE_BYTES(threads));

    model_run(inputs, outputs, weights, workspace, threads, threads > 1 ? spread : NULL, &threads);

    const model_tensor *last = &model_outputs[MODEL_OUTPUTS - 1];
    const float *rows = outputs[MODEL_OUTPUTS - 1];
    int64_t height = last->shape[0], width = last->bytes / (int64_t)sizeof(float) / height;
    for (int64_t i = 1; i < height; i++) {
        const float *other = rows + i * width;
        double lengths = sqrt(dot(rows, rows, width)) * sqrt(dot(other, other, width));
        printf("%.17g\n", dot(rows, other, width) / lengths);
    }
    FILE *result = fopen(arguments[2], "wb");
    if (!result || fwrite(rows, 1, (size_t)last->bytes, result) != (size_t)last->bytes ||
        fclose(result))
        fail(arguments[2]);
    return 0;
}
