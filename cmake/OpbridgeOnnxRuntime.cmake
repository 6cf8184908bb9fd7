# Finds ONNX Runtime's C header; sets OPBRIDGE_ORT_INCLUDE_DIR. Only opbridge itself needs it, plug-ins do not.

find_path(OPBRIDGE_ORT_INCLUDE_DIR onnxruntime_c_api.h
  HINTS ${ONNXRUNTIME_ROOT} $ENV{ONNXRUNTIME_ROOT}
  PATHS ${CMAKE_CURRENT_LIST_DIR}/../build/deps/onnxruntime
  PATH_SUFFIXES include include/onnxruntime include/onnxruntime/core/session)
if(NOT OPBRIDGE_ORT_INCLUDE_DIR)
  message(FATAL_ERROR "ONNX Runtime's C header onnxruntime_c_api.h was not found. One of these helps:\n"
    "  make setup                                   fetches it into build/deps/onnxruntime\n"
    "  scripts/fetch_ort_headers.sh DIR             fetches it into DIR; then pass -DONNXRUNTIME_ROOT=DIR\n"
    "  -DONNXRUNTIME_ROOT=DIR (or the environment)  an unpacked release archive (onnxruntime-linux-x64-1.XX.Y.tgz\n"
    "                                               from https://github.com/microsoft/onnxruntime/releases)\n"
    "  the package libonnxruntime-dev               where the distribution has one")
endif()
