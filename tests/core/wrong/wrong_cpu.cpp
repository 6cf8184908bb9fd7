// A signature that is wrong.
#include "opbridge/op.h"

OPBRIDGE_OPERATORS(wrong) {
  return {opbridge::Operator("Wrong(x: f33[N]) -> y: f32[N]").cpu([](const opbridge::Call&) {})};
}
