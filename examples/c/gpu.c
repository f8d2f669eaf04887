/* A model that fuser compiled for an NVIDIA GPU, run from C with the driver API alone.

       fuser compile model.onnx --emit object --target sm_90a --name model -o out
       cc -O2 -Iout -I/usr/local/cuda/include examples/c/gpu.c -lcuda -o gpu
       ./gpu out result.bin input0.bin input1.bin ...

   Each input is a file of its bytes, in the order of model_inputs; the last output is written to
   the second file. A service would capture the steps in a CUDA graph and launch that. */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

#define MOST_PARAMETERS 256

static void check(CUresult status, const char *what) {
    const char *name = "unknown";
    if (status == CUDA_SUCCESS) return;
    cuGetErrorName(status, &name);
    fprintf(stderr, "%s: %s\n", what, name);
    exit(1);
}

/* The bytes of a file, with a zero behind them. */
static char *read_file(const char *path, int64_t *bytes) {
    FILE *file = fopen(path, "rb");
    long size = -1;
    if (file && !fseek(file, 0, SEEK_END)) size = ftell(file);
    char *held = size < 0 ? NULL : calloc((size_t)size + 1, 1);
    if (!held || fseek(file, 0, SEEK_SET) ||
        fread(held, 1, (size_t)size, file) != (size_t)size) {
        perror(path);
        exit(1);
    }
    fclose(file);
    *bytes = size;
    return held;
}

static CUdeviceptr allocate(int64_t bytes) {
    CUdeviceptr held;
    check(cuMemAlloc(&held, (size_t)(bytes ? bytes : 1)), "cuMemAlloc");
    return held;
}

/* A file in memory of the GPU. */
static CUdeviceptr upload(const char *path, int64_t wanted) {
    int64_t bytes;
    char *held = read_file(path, &bytes);
    if (bytes != wanted) {
        fprintf(stderr, "%s has %lld bytes, not %lld\n", path, (long long)bytes,
                (long long)wanted);
        exit(1);
    }
    CUdeviceptr place = allocate(bytes);
    if (bytes) check(cuMemcpyHtoD(place, held, (size_t)bytes), "cuMemcpyHtoD");
    free(held);
    return place;
}

static CUdeviceptr inputs[MODEL_INPUTS + 1], outputs[MODEL_OUTPUTS + 1], weights, workspace;

static CUdeviceptr address(model_place place) {
    switch (place.space) {
    case 'i': return inputs[place.at];
    case 'o': return outputs[place.at];
    case 'c': return weights + (CUdeviceptr)place.at;
    default: return workspace + (CUdeviceptr)place.at;
    }
}

static void encode(CUtensorMap *map, const model_map *item, CUdeviceptr buffer) {
    void *start = (void *)(buffer + (CUdeviceptr)item->start);
    CUtensorMapDataType type = (CUtensorMapDataType)item->type;
    CUtensorMapSwizzle swizzle = (CUtensorMapSwizzle)item->swizzle;
    cuuint64_t shape[5], strides[5];
    for (int i = 0; i < 5; i++) shape[i] = item->shape[i], strides[i] = item->strides[i];
    if (item->im2col)
        check(cuTensorMapEncodeIm2col(map, type, (cuuint32_t)item->rank, start, shape, strides,
                                      item->lower, item->upper, item->box[0], item->box[1],
                                      item->steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                      CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
              "cuTensorMapEncodeIm2col");
    else
        check(cuTensorMapEncodeTiled(map, type, (cuuint32_t)item->rank, start, shape, strides,
                                     item->box, item->steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                     swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
              "cuTensorMapEncodeTiled");
}

static CUfunction load(const char *folder, const model_step *step) {
    char path[4096];
    int64_t bytes;
    CUmodule module;
    CUfunction function;
    snprintf(path, sizeof path, "%s/%s", folder, step->file);
    char *code = read_file(path, &bytes);
    check(cuModuleLoadData(&module, code), step->file);
    free(code);
    check(cuModuleGetFunction(&function, module, step->entry), step->entry);
    if (step->shared > 48 << 10)
        check(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                 (int)step->shared),
              "cuFuncSetAttribute");
    return function;
}

static void launch(CUfunction function, const model_step *step, CUstream stream) {
    CUdeviceptr pointers[MOST_PARAMETERS];
    CUtensorMap *maps = aligned_alloc(64, sizeof(CUtensorMap) * (size_t)(step->map_count + 1));
    void *parameters[3 * MOST_PARAMETERS];
    int count = 0;
    if (!maps || step->place_count > MOST_PARAMETERS || step->size_count > MOST_PARAMETERS ||
        step->map_count > MOST_PARAMETERS)
        check(CUDA_ERROR_INVALID_VALUE, step->entry);
    for (int i = 0; i < step->place_count; i++) {
        pointers[i] = address(step->places[i]);
        parameters[count++] = &pointers[i];
    }
    for (int i = 0; i < step->map_count; i++) {
        encode(&maps[i], &step->maps[i], pointers[step->maps[i].argument]);
        parameters[count++] = &maps[i];
    }
    for (int i = 0; i < step->size_count; i++) parameters[count++] = (void *)&step->sizes[i];

    CUlaunchAttribute attributes[2];
    CUlaunchConfig config;
    memset(attributes, 0, sizeof attributes);
    memset(&config, 0, sizeof config);
    config.gridDimX = step->grid[0], config.gridDimY = step->grid[1];
    config.gridDimZ = step->grid[2];
    config.blockDimX = step->block, config.blockDimY = 1, config.blockDimZ = 1;
    config.sharedMemBytes = step->shared;
    config.hStream = stream;
    config.attrs = attributes;
    if (step->cluster > 1) {
        attributes[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[config.numAttrs].value.clusterDim.x = step->cluster;
        attributes[config.numAttrs].value.clusterDim.y = 1;
        attributes[config.numAttrs++].value.clusterDim.z = 1;
    }
    if (step->overlap) {
        attributes[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[config.numAttrs++].value.programmaticStreamSerializationAllowed = 1;
    }
    check(cuLaunchKernelEx(&config, function, parameters, NULL), step->entry);
    free(maps);
}

int main(int count, char **arguments) {
    if (count != 3 + MODEL_INPUTS) {
        fprintf(stderr, "usage: %s FOLDER RESULT INPUT...; %d inputs\n", arguments[0],
                MODEL_INPUTS);
        return 2;
    }
    CUdevice device;
    CUcontext context;
    CUstream stream;
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");

    char path[4096];
    snprintf(path, sizeof path, "%s/%s", arguments[1], MODEL_WEIGHTS);
    weights = upload(path, MODEL_WEIGHTS_BYTES);
    workspace = allocate(MODEL_WORKSPACE_BYTES);
    for (int i = 0; i < MODEL_INPUTS; i++)
        inputs[i] = upload(arguments[3 + i], model_inputs[i].bytes);
    for (int i = 0; i < MODEL_OUTPUTS; i++) outputs[i] = allocate(model_outputs[i].bytes);
    CUfunction functions[MODEL_STEPS + 1];
    for (int i = 0; i < MODEL_STEPS; i++)
        if (model_steps[i].kind == 'l') functions[i] = load(arguments[1], &model_steps[i]);

    for (int i = 0; i < MODEL_STEPS; i++) {
        const model_step *step = &model_steps[i];
        if (step->kind == 'l')
            launch(functions[i], step, stream);
        else if (step->kind == 'z')
            check(cuMemsetD8Async(address(step->places[0]), 0, (size_t)step->bytes, stream),
                  "cuMemsetD8Async");
        else
            check(cuMemcpyDtoDAsync(address(step->places[1]), address(step->places[0]),
                                    (size_t)step->bytes, stream),
                  "cuMemcpyDtoDAsync");
    }
    check(cuStreamSynchronize(stream), "cuStreamSynchronize");

    int64_t bytes = model_outputs[MODEL_OUTPUTS - 1].bytes;
    char *host = malloc((size_t)bytes + 1);
    check(cuMemcpyDtoH(host, outputs[MODEL_OUTPUTS - 1], (size_t)bytes), "cuMemcpyDtoH");
    FILE *result = fopen(arguments[2], "wb");
    if (!result || fwrite(host, 1, (size_t)bytes, result) != (size_t)bytes || fclose(result)) {
        perror(arguments[2]);
        return 1;
    }
    return 0;
}
