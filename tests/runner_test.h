// What the runner's tests share.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "opbridge/error.h"

namespace opbridge {

/// The message of the Error that `f` throws; fails the test when it throws none.
inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

/// A test with a folder of its own, gone afterwards.
class FolderTest : public testing::Test {
 protected:
  FolderTest() {
    const std::string suite = testing::UnitTest::GetInstance()->current_test_info()->test_suite_name();
    folder_ = std::filesystem::temp_directory_path() / ("opbridge_" + suite + "_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  ~FolderTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

  std::filesystem::path folder_;
};

}  // namespace opbridge
