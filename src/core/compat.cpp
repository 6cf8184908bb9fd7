// Keeps libraries loadable with an older libstdc++ than the compiler's own. GCC 12 emits calls to this
// function, which only libstdc++ 11 (GLIBCXX_3.4.29) and newer export; a hidden definition of our own removes
// the requirement.
#include <new>

#if defined(__GLIBCXX__)
namespace std {
__attribute__((visibility("hidden"))) void __throw_bad_array_new_length();
void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std
#endif
