#include "library_file.h"

#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "opbridge/abi.h"
#include "opbridge/error.h"
#include "proto.h"

namespace opbridge {

namespace fs = std::filesystem;

namespace {

#if defined(__x86_64__)
constexpr uint16_t kThisMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kThisMachine = EM_AARCH64;
#else
#error "tell kThisMachine this machine's ELF number"
#endif

std::string machine_name(uint16_t machine) {
  switch (machine) {
    case EM_X86_64:
      return "x86_64";
    case EM_AARCH64:
      return "aarch64";
    case EM_386:
      return "i386";
    case EM_ARM:
      return "arm";
    case EM_RISCV:
      return "riscv";
    case EM_PPC64:
      return "ppc64";
    default:
      return "machine " + std::to_string(machine);
  }
}

// Bounds-checked access to the bytes of an ELF file.
class Elf {
 public:
  Elf(const std::string& bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  [[noreturn]] void fail(const std::string& why) const { throw InvalidArgument("'" + path_ + "' " + why); }

  template <class T>
  T at(uint64_t offset) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T))
      fail("is a damaged or cut off ELF file");
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }

  /// The text that starts `index` bytes into a string table.
  std::string text(const Elf64_Shdr& table, uint64_t index) const {
    if (index >= table.sh_size || table.sh_offset > bytes_.size() ||
        bytes_.size() - table.sh_offset < table.sh_size) {
      fail("is a damaged or cut off ELF file");
    }
    const char* begin = bytes_.data() + table.sh_offset + index;
    return std::string(begin, strnlen(begin, table.sh_size - index));
  }

 private:
  const std::string& bytes_;
  const std::string& path_;
};

// "GLIBCXX_3.4.21" -> {"GLIBCXX", {3, 4, 21}}
std::pair<std::string, std::vector<int>> split_version(const std::string& version) {
  const size_t split = version.rfind('_');
  if (split == std::string::npos) return {version, {}};
  std::vector<int> numbers(1, 0);
  for (size_t i = split + 1; i < version.size(); ++i) {
    if (version[i] == '.')
      numbers.push_back(0);
    else if (version[i] < '0' || version[i] > '9')
      return {version, {}};
    else if (numbers.back() < 100000)
      numbers.back() = numbers.back() * 10 + (version[i] - '0');
  }
  return {version.substr(0, split), numbers};
}

std::vector<std::string> newest_of_each(const std::set<std::string>& versions) {
  std::map<std::string, std::pair<std::vector<int>, std::string>> newest;
  for (const std::string& v : versions) {
    const auto [family, numbers] = split_version(v);
    auto& best = newest[family];
    if (best.second.empty() || best.first < numbers) best = {numbers, v};
  }
  std::vector<std::string> names;
  for (const auto& entry : newest) names.push_back(entry.second.second);
  return names;
}

}  // namespace

bool ElfFacts::exports(const std::string& symbol) const {
  return std::binary_search(exported.begin(), exported.end(), symbol);
}

bool is_elf(const std::string& path) {
  char magic[SELFMAG] = {};
  std::ifstream in(path, std::ios::binary);
  in.read(magic, SELFMAG);
  return in && std::memcmp(magic, ELFMAG, SELFMAG) == 0;
}

ElfFacts read_elf(const std::string& path) { return parse_elf(read_file(path), path); }

ElfFacts parse_elf(const std::string& bytes, const std::string& path) {
  const Elf elf(bytes, path);
  if (bytes.compare(0, SELFMAG, ELFMAG) != 0) {
    elf.fail("is not a shared library: it does not start as an ELF file does" +
             std::string(bytes.empty() ? " (the file is empty)" : ""));
  }
  const auto header = elf.at<Elf64_Ehdr>(0);
  if (header.e_ident[EI_CLASS] != ELFCLASS64) elf.fail("is a 32-bit library; a 64-bit one is needed");
  if (header.e_ident[EI_DATA] != ELFDATA2LSB)
    elf.fail("is a big-endian library; this machine is little-endian");
  ElfFacts facts;
  facts.machine = machine_name(header.e_machine);
  if (header.e_machine != kThisMachine) {
    elf.fail("is built for " + facts.machine + ", this machine is " + machine_name(kThisMachine) +
             "; build the library here or get the one for this machine");
  }
  if (header.e_type != ET_DYN)
    elf.fail("is an ELF file, but not a shared library (an object file or a program?)");
  if (header.e_shoff == 0 || header.e_shentsize != sizeof(Elf64_Shdr))
    elf.fail("has no section headers to read");

  std::vector<Elf64_Shdr> sections;
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    sections.push_back(elf.at<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr)));
  }
  const auto linked = [&](const Elf64_Shdr& s) -> const Elf64_Shdr& {
    if (s.sh_link >= sections.size()) elf.fail("is a damaged or cut off ELF file");
    return sections[s.sh_link];
  };
  std::set<std::string> exported, all, undefined, versions;
  for (const Elf64_Shdr& s : sections) {
    if (header.e_shstrndx < sections.size()) {
      const std::string name = elf.text(sections[header.e_shstrndx], s.sh_name);
      facts.has_cuda_code = facts.has_cuda_code || name == ".nv_fatbin" || name == "__nv_relfatbin";
    }
    if (s.sh_type == SHT_DYNAMIC) {
      for (uint64_t at = 0; at + sizeof(Elf64_Dyn) <= s.sh_size; at += sizeof(Elf64_Dyn)) {
        const auto d = elf.at<Elf64_Dyn>(s.sh_offset + at);
        if (d.d_tag == DT_NULL) break;
        if (d.d_tag == DT_NEEDED) facts.needed.push_back(elf.text(linked(s), d.d_un.d_val));
        if (d.d_tag == DT_SONAME) facts.soname = elf.text(linked(s), d.d_un.d_val);
        if (d.d_tag == DT_RUNPATH || d.d_tag == DT_RPATH)
          facts.run_path.push_back(elf.text(linked(s), d.d_un.d_val));
      }
    } else if (s.sh_type == SHT_DYNSYM) {
      for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= s.sh_size; at += sizeof(Elf64_Sym)) {
        const auto symbol = elf.at<Elf64_Sym>(s.sh_offset + at);
        const unsigned visibility = ELF64_ST_VISIBILITY(symbol.st_other);
        const bool visible = visibility == STV_DEFAULT || visibility == STV_PROTECTED;
        // SHN_ABS: the name of a symbol version, nothing that can be called.
        const bool defined = symbol.st_shndx != SHN_UNDEF && symbol.st_shndx != SHN_ABS &&
                             ELF64_ST_BIND(symbol.st_info) != STB_LOCAL;
        if (visible && defined) exported.insert(elf.text(linked(s), symbol.st_name));
        if (symbol.st_shndx == SHN_UNDEF && ELF64_ST_BIND(symbol.st_info) == STB_GLOBAL)
          undefined.insert(elf.text(linked(s), symbol.st_name));
      }
    } else if (s.sh_type == SHT_SYMTAB) {
      for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= s.sh_size; at += sizeof(Elf64_Sym)) {
        const auto symbol = elf.at<Elf64_Sym>(s.sh_offset + at);
        if (symbol.st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC)
          all.insert(elf.text(linked(s), symbol.st_name));
      }
    } else if (s.sh_type == SHT_GNU_verneed) {
      uint64_t at = s.sh_offset;
      for (uint32_t i = 0; i < s.sh_info; ++i) {
        const auto need = elf.at<Elf64_Verneed>(at);
        uint64_t aux = at + need.vn_aux;
        for (unsigned k = 0; k < need.vn_cnt; ++k) {
          const auto version = elf.at<Elf64_Vernaux>(aux);
          versions.insert(elf.text(linked(s), version.vna_name));
          if (version.vna_next == 0) break;
          aux += version.vna_next;
        }
        if (need.vn_next == 0) break;
        at += need.vn_next;
      }
    }
  }
  for (unsigned i = 0; i < header.e_phnum && header.e_phentsize == sizeof(Elf64_Phdr); ++i) {
    const auto segment = elf.at<Elf64_Phdr>(header.e_phoff + i * sizeof(Elf64_Phdr));
    if (segment.p_type == PT_GNU_STACK) facts.executable_stack = (segment.p_flags & PF_X) != 0;
  }
  facts.exported.assign(exported.begin(), exported.end());
  std::set_difference(all.begin(), all.end(), exported.begin(), exported.end(),
                      std::back_inserter(facts.hidden));
  facts.undefined.assign(undefined.begin(), undefined.end());
  facts.needed_versions = newest_of_each(versions);
  return facts;
}

std::string LibraryFile::domain() const {
  return is_opbridge() ? manifest.at("domain").get<std::string>() : "";
}

const nlohmann::ordered_json* LibraryFile::find_operator(const std::string& name) const {
  if (!is_opbridge()) return nullptr;
  for (const auto& op : manifest.at("operators")) {
    if (op.at("name") == name) return &op;
  }
  return nullptr;
}

LibraryFile read_library(const std::string& path) {
  LibraryFile library;
  std::error_code ec;
  // With a folder in front: the dynamic loader looks a bare name up elsewhere.
  library.path = fs::absolute(path, ec).string();
  library.elf = read_elf(path);
  if (!library.elf.exports("opbridge_get_library")) return library;

  // Stays loaded: its manifest is only copied, but a CUDA runtime inside it does not like to be unloaded.
  void* handle = dlopen(library.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw Error(ErrorKind::kNotSupported, "'" + path + "' cannot be loaded: " + dlerror());
  }
  const auto get = reinterpret_cast<decltype(&opbridge_get_library)>(dlsym(handle, "opbridge_get_library"));
  OpbridgeError error{};
  error.size = sizeof(error);
  const OpbridgeLibrary* loaded = get == nullptr ? nullptr : get(OPBRIDGE_ABI_VERSION, &error);
  if (loaded == nullptr) throw Error(ErrorKind::kNotSupported, "'" + path + "': " + error.message);
  try {
    library.manifest = nlohmann::ordered_json::parse(loaded->manifest);
    for (const char* field : {"domain", "library", "version", "operators"}) library.manifest.at(field);
    for (const auto& op : library.manifest.at("operators")) {
      for (const char* field :
           {"name", "signature", "fingerprint", "inputs", "outputs", "attributes", "devices"}) {
        op.at(field);
      }
    }
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorKind::kInternal, "'" + path + "' has a manifest that cannot be read: " + e.what());
  }
  return library;
}

LibraryFile read_operator_library(const std::string& path) {
  LibraryFile library = read_library(path);
  if (library.elf.exports("RegisterCustomOps")) return library;
  bool torch = false, python = false;
  for (const std::string& n : library.elf.needed)
    torch = torch || n.rfind("libtorch", 0) == 0 || n.rfind("libc10", 0) == 0;
  for (const std::string& s : library.elf.exported) python = python || s.rfind("PyInit_", 0) == 0;
  std::string what = "it exports no RegisterCustomOps";
  if (torch || python)
    what = std::string("it is a ") + (torch ? "PyTorch extension" : "Python module") + ": " + what;
  throw InvalidArgument("'" + path + "' is not a custom-operator library for ONNX Runtime: " + what +
                        ". Pass the library that opbridge_add_library() built, lib<name>.so");
}

}  // namespace opbridge
