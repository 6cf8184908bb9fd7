// From colour, depth and camera to a pose in C++, without Python.
//
//   test_cpp_infer MODEL.onnx LIBRARY.so COLOR.png DEPTH.png FX FY CX CY OBJECT [X Y WIDTH HEIGHT]
//
// The depth is 16-bit millimetres; the box is where to look, by default the whole picture. With a live camera
// the two pictures are the buffers of its driver. Exit codes: 0 found, 1 not found or an error, 2 wrong
// command line.
#include <opbridge/pose.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

int main(int argc, char** argv) {
  if (argc != 10 && argc != 14) {
    std::fprintf(
        stderr,
        "usage: test_cpp_infer MODEL.onnx LIBRARY.so COLOR.png DEPTH.png FX FY CX CY OBJECT [X Y WIDTH "
        "HEIGHT]\n");
    return 2;
  }
  try {
    opbridge::PoseOptions options;
    options.session.libraries = {argv[2]};
    const opbridge::Runtime runtime = opbridge::Runtime::find();
    const opbridge::PoseEstimator estimator(runtime, argv[1], options);

    const opbridge::Array color = opbridge::read_png(argv[3]), depth = opbridge::read_png(argv[4]);
    const auto number = [&](int i) { return std::strtod(argv[i], nullptr); };
    const opbridge::Camera camera{number(5), number(6), number(7), number(8)};
    const opbridge::Frame frame = opbridge::make_frame(color, depth, camera);
    opbridge::PoseRequest request{argv[9], {}};
    if (argc == 14) request.box = {number(10), number(11), number(12), number(13)};

    const opbridge::Estimate result = estimator.estimate(frame, {request});
    for (const std::string& warning : result.warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
    const opbridge::Pose& pose = result.poses[0];
    std::printf("%s: %s, %lld of %lld points agree, %.2f mm residual, %.1f ms with ONNX Runtime %s\n",
                pose.object.c_str(), pose.valid == 0 ? "not found" : "found",
                static_cast<long long>(pose.inliers), static_cast<long long>(pose.points),
                1e3 * pose.residual, result.total_ms, runtime.version().c_str());
    if (pose.valid == 0) return 1;
    for (int i = 0; i < 3; ++i) {
      const double* r = pose.rotation.data() + 3 * i;
      std::printf("  R %9.6f %9.6f %9.6f   t %9.6f m\n", r[0], r[1], r[2], pose.translation[i]);
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}
