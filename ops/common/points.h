// Arithmetic on points that every operator and both devices share, so that they decide alike.
#pragma once

#include "opbridge/tensor.h"

namespace pvn3d {

/// The type that elements of type T are computed in: float for f16 and f32, double for f64.
template <class T>
struct ComputeType {
  using type = float;
};
template <>
struct ComputeType<double> {
  using type = double;
};
template <class T>
using Compute = typename ComputeType<T>::type;

/// (dx*dx + dy*dy) + dz*dz, in this order and without fused multiply-add: it decides who is whose neighbour.
template <class C>
OPBRIDGE_HD C squared_norm(C dx, C dy, C dz) {
  return (dx * dx + dy * dy) + dz * dz;
}

template <class C>
OPBRIDGE_HD C squared_distance(C ax, C ay, C az, C bx, C by, C bz) {
  return squared_norm(ax - bx, ay - by, az - bz);
}

/// False for NaN and infinity.
template <class C>
OPBRIDGE_HD bool is_finite(C v) {
  return v - v == C(0);
}

template <class C>
OPBRIDGE_HD bool is_finite(C x, C y, C z) {
  return is_finite(x) & is_finite(y) & is_finite(z);
}

template <class C>
struct Point {
  C x, y, z;
};

/// Point i of an array of (x, y, z) rows.
template <class T>
OPBRIDGE_HD Point<Compute<T>> load_point(const T* xyz, int64_t i) {
  using C = Compute<T>;
  return {static_cast<C>(xyz[3 * i]), static_cast<C>(xyz[3 * i + 1]), static_cast<C>(xyz[3 * i + 2])};
}

/// An index input is trusted by nobody: outside [0, n) nothing is read.
template <class I>
OPBRIDGE_HD bool in_range(I index, int64_t n) {
  return index >= 0 && static_cast<int64_t>(index) < n;
}

/// features[at], or 0 where the index is out of range.
template <class T, class I>
OPBRIDGE_HD T read_or_zero(const T* features, I at, int64_t n) {
  return in_range(at, n) ? features[at] : T{};
}

}  // namespace pvn3d
