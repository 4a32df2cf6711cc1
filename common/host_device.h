// Functions that GPUs compute, too.
#ifndef OPTSHARD_COMMON_HOST_DEVICE_H_
#define OPTSHARD_COMMON_HOST_DEVICE_H_

// OPTSHARD_HOST_DEVICE stands before a function's return type, OPTSHARD_UNROLL before a loop whose
// array is to be kept in registers. OPTSHARD_IN_DEVICE_MEMORY(pointer) promises that the pointer is
// to a device's memory, not to what the threads of a block share: the compiler then uses
// instructions for that memory. All are nothing to a compiler for CPUs.
#ifdef __CUDACC__
#define OPTSHARD_HOST_DEVICE __host__ __device__
#define OPTSHARD_UNROLL _Pragma("unroll")
#else
#define OPTSHARD_HOST_DEVICE
#define OPTSHARD_UNROLL
#endif

#ifdef __CUDA_ARCH__
#define OPTSHARD_IN_DEVICE_MEMORY(pointer) __builtin_assume(__isGlobal(pointer))
#else
#define OPTSHARD_IN_DEVICE_MEMORY(pointer) static_cast<void>(pointer)
#endif

#endif  // OPTSHARD_COMMON_HOST_DEVICE_H_
