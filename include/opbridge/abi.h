/* The C interface of an operator library, for hosts that know no C++: one exported symbol, plain structs.
 *
 *   const OpbridgeLibrary* library = opbridge_get_library(OPBRIDGE_ABI_VERSION, &error);
 *
 * Rules: every struct that may grow starts with its size, and both sides read only what that size covers;
 * functions return 0 or an OPBRIDGE_* error kind and then fill `error`; nothing is thrown, printed or kept
 * between calls; all functions may be called from any thread, also at the same time. */
#ifndef OPBRIDGE_ABI_H
#define OPBRIDGE_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPBRIDGE_ABI_VERSION 1
#define OPBRIDGE_MAX_RANK 16

/* Error kinds; 0 is success. */
enum {
  OPBRIDGE_INVALID_ARGUMENT = 1,
  OPBRIDGE_NOT_SUPPORTED = 2,
  OPBRIDGE_OUT_OF_MEMORY = 3,
  OPBRIDGE_DEVICE = 4,
  OPBRIDGE_INTERNAL = 5
};

typedef struct OpbridgeError {
  uint32_t size;      /* sizeof(OpbridgeError), set by the caller */
  int32_t kind;       /* as returned */
  char message[2040]; /* UTF-8, null-terminated, cut at the end if need be */
} OpbridgeError;

/* Laid out as DLPack's DLTensor: one may be passed for the other. Must be contiguous and row-major: `strides`
 * null, or the strides of a contiguous tensor. device_type: 1 CPU, 2 CUDA. dtype_code: 0 int, 1 uint, 2
 * float, 4 bfloat, 6 bool. infer and workspace_bytes compute nothing from `data`; OPBRIDGE_DUMP
 * writes down that of a call that infer refuses, where it is not null. */
typedef struct OpbridgeTensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t dtype_code;
  uint8_t dtype_bits;
  uint16_t dtype_lanes; /* 1 */
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} OpbridgeTensor;

/* What infer() says of one output. */
typedef struct OpbridgeTensorSpec {
  uint8_t dtype_code;
  uint8_t dtype_bits;
  uint16_t reserved;
  int32_t ndim;
  int64_t shape[OPBRIDGE_MAX_RANK];
} OpbridgeTensorSpec;

/* An attribute's value. `type`: 1 int, 2 float, 3 bool, 4 string, 5 ints, 6 floats. bool uses `i`. */
typedef struct OpbridgeAttribute {
  const char* name;
  int32_t type;
  int32_t reserved;
  int64_t i;
  double f; /* rounded to float32, as every host does */
  const char* s;
  const int64_t* ints;
  const float* floats;
  size_t count; /* of ints or floats */
} OpbridgeAttribute;

/* What a host offers to one compute(). Zero-initialise, set `size`, fill what you have. */
typedef struct OpbridgeHost {
  uint32_t size;
  int32_t
      threads;  /* for the library's own threads, where parallel_for is null: 0 as many as the machine has */
  void* stream; /* cudaStream_t; null is the default stream */
  void* workspace; /* at least workspace_bytes(), aligned to 256, on the tensors' device */
  size_t workspace_bytes;
  /* Runs task(data, chunk) for each chunk in [0, chunks) and returns when all are done; null: the library's
   * own. */
  void (*parallel_for)(void* parallel_host, void (*task)(void* data, size_t chunk), size_t chunks,
                       void* data);
  void* parallel_host;
} OpbridgeHost;

/* An operator with its attributes resolved and checked, as one node of a graph. */
typedef struct OpbridgeNode OpbridgeNode;

typedef struct OpbridgeLibrary {
  uint32_t size;
  uint32_t abi_version;
  const char* manifest; /* JSON, UTF-8; docs/manifest.md */

  /* Looks up an operator by its ONNX name. Attributes not given take their defaults. `node_name` may be null.
   */
  int32_t (*create_node)(const char* op, const char* node_name, const OpbridgeAttribute* attributes,
                         size_t count, OpbridgeNode** node, OpbridgeError* error);
  void (*destroy_node)(OpbridgeNode* node);

  /* Checks the inputs (an absent optional one is a null pointer) and fills one spec for each declared output.
   */
  int32_t (*infer)(const OpbridgeNode* node, const OpbridgeTensor* const* inputs, size_t input_count,
                   OpbridgeTensorSpec* outputs, size_t output_count, OpbridgeError* error);

  int32_t (*workspace_bytes)(const OpbridgeNode* node, const OpbridgeTensor* const* inputs,
                             size_t input_count, int32_t device_type, size_t* bytes, OpbridgeError* error);

  /* Computes. Outputs are allocated by the caller as infer() said; an optional output that is not wanted is
   * null. On CUDA the work is only enqueued on host->stream. */
  int32_t (*compute)(const OpbridgeNode* node, const OpbridgeTensor* const* inputs, size_t input_count,
                     const OpbridgeTensor* const* outputs, size_t output_count, const OpbridgeHost* host,
                     OpbridgeError* error);
} OpbridgeLibrary;

/* The library's only entry besides ONNX Runtime's RegisterCustomOps. Null, with `error` filled, when
 * `abi_version` is newer than the library knows or when one of its own declarations is wrong. The result
 * lives as long as the library is loaded. */
const OpbridgeLibrary* opbridge_get_library(uint32_t abi_version, OpbridgeError* error);

#ifdef __cplusplus
}
#endif

#endif /* OPBRIDGE_ABI_H */
