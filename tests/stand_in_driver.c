/* A stand-in for the CUDA driver, to run examples/c/gpu.c without a GPU: memory is the host's, and a
   launch tells what it was given instead of running. Values that are addresses are told as the number
   of the allocation, a plus and the offset in it; tensor maps as an @ before the address. */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct { char *start; size_t bytes; } held[64];
static int allocations;
static struct kernel { char entry[256]; int words, maps, numbers, shared; } kernels[64];
static int loaded;

static void tell(CUdeviceptr value) {
    for (int i = 0; i < allocations; i++) {
        CUdeviceptr start = (CUdeviceptr)held[i].start;
        if (value >= start && value < start + held[i].bytes) {
            printf("%d+%llu", i, (unsigned long long)(value - start));
            return;
        }
    }
    printf("%llu", (unsigned long long)value);
}

static int inside(CUdeviceptr at, size_t bytes) {
    for (int i = 0; i < allocations; i++) {
        CUdeviceptr start = (CUdeviceptr)held[i].start;
        if (at >= start && at + bytes <= start + held[i].bytes) return 1;
    }
    return 0;
}

CUresult cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    return *context = (CUcontext)(held + device), CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
    return context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    return *stream = (CUstream)kernels, flags > 1 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) {
    return stream == (CUstream)kernels ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuGetErrorName(CUresult status, const char **name) {
    return *name = status ? "an error" : "none", CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr *place, size_t bytes) {
    if (!bytes || allocations == 64) return CUDA_ERROR_INVALID_VALUE;
    held[allocations].start = aligned_alloc(256, (bytes + 255) / 256 * 256);
    held[allocations].bytes = bytes;
    memset(held[allocations].start, 7, bytes);
    return *place = (CUdeviceptr)held[allocations++].start, CUDA_SUCCESS;
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes) {
    if (!inside(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return memcpy((void *)to, from, bytes), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes) {
    if (!inside(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return memcpy(to, (void *)from, bytes), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    if (!inside(to, bytes) || !inside(from, bytes) || !stream) return CUDA_ERROR_INVALID_VALUE;
    return memcpy((void *)to, (void *)from, bytes), CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
    if (!inside(to, bytes) || !stream) return CUDA_ERROR_INVALID_VALUE;
    return memset((void *)to, value, bytes), CUDA_SUCCESS;
}

/* The parameters of a kernel are those that its PTX declares: tensor maps have 128 bytes. */
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    if (loaded == 64) return CUDA_ERROR_INVALID_VALUE;
    struct kernel *kernel = &kernels[loaded++];
    const char *at = strstr(image, ".entry "), *end = at ? strchr(at, ')') : NULL;
    if (!end || sscanf(at, ".entry %255[^( \n]", kernel->entry) != 1) return CUDA_ERROR_INVALID_PTX;
    while ((at = strstr(at, ".param")) && at < end) {
        const char *comma = strchr(at, ',');
        const char *stop = comma && comma < end ? comma : end, *map = strstr(at, "[128]");
        if (map && map < stop) kernel->maps++;
        else if (kernel->maps) kernel->numbers++; /* numbers come behind the maps */
        else kernel->words++;
        at = stop;
    }
    return *module = (CUmodule)kernel, CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    *function = (CUfunction)module;
    return strcmp(((struct kernel *)module)->entry, name) ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
    return ((struct kernel *)function)->shared = value, CUDA_SUCCESS;
}

/* A map holds its address and its rank. */
static CUresult encoded(CUtensorMap *map, void *start, cuuint32_t rank) {
    map->opaque[0] = (cuuint64_t)start, map->opaque[1] = rank;
    return (size_t)map % 64 || (size_t)start % 16 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(
    CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *start,
    const cuuint64_t *shape, const cuuint64_t *strides, const cuuint32_t *box,
    const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    (void)type, (void)strides, (void)steps, (void)interleave, (void)swizzle, (void)promotion;
    (void)fill;
    for (cuuint32_t i = 0; i < rank; i++)
        if (!shape[i] || !box[i] || box[i] > 256) return CUDA_ERROR_INVALID_VALUE;
    return encoded(map, start, rank);
}
CUresult cuTensorMapEncodeIm2col(
    CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *start,
    const cuuint64_t *shape, const cuuint64_t *strides, const int *lower, const int *upper,
    cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *steps,
    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    (void)type, (void)shape, (void)strides, (void)lower, (void)upper, (void)steps;
    (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    if (!channels || channels > 256 || !pixels || pixels > 1024) return CUDA_ERROR_INVALID_VALUE;
    return encoded(map, start, rank);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **given,
                          void **extra) {
    struct kernel *kernel = (struct kernel *)function;
    unsigned cluster = 1, overlap = 0;
    if (extra || config->hStream != (CUstream)kernels) return CUDA_ERROR_INVALID_VALUE;
    if (config->sharedMemBytes > 48 << 10 && config->sharedMemBytes > (unsigned)kernel->shared)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        CUlaunchAttribute item = config->attrs[i];
        if (item.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) cluster = item.value.clusterDim.x;
        if (item.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            overlap = (unsigned)item.value.programmaticStreamSerializationAllowed;
    }
    printf("%s %ux%ux%u %u %u %u %u", kernel->entry, config->gridDimX, config->gridDimY,
           config->gridDimZ, config->blockDimX * config->blockDimY * config->blockDimZ,
           config->sharedMemBytes, cluster, overlap);
    for (int i = 0; i < kernel->words; i++) printf(" "), tell(*(CUdeviceptr *)*given++);
    for (int i = 0; i < kernel->maps; i++) printf(" @"), tell(((CUtensorMap *)*given++)->opaque[0]);
    for (int i = 0; i < kernel->numbers; i++) printf(" "), tell(*(CUdeviceptr *)*given++);
    printf("\n");
    return CUDA_SUCCESS;
}
