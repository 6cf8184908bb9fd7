/* Says it is ONNX Runtime 1.15.1, the newest that opbridge refuses. */
#include <stddef.h>
#include <stdint.h>

struct ApiBase {
  const void* (*get_api)(uint32_t version);
  const char* (*get_version)(void);
};

static const void* get_api(uint32_t version) {
  (void)version;
  return NULL;
}

static const char* get_version(void) { return "1.15.1"; }

const struct ApiBase* OrtGetApiBase(void);
const struct ApiBase* OrtGetApiBase(void) {
  static const struct ApiBase base = {get_api, get_version};
  return &base;
}
