// What can be told about models and libraries without running them.
#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "runner/library_file.h"
#include "runner/model.h"
#include "runner/proto.h"
#include "runner_test.h"

namespace opbridge {
namespace {

namespace fs = std::filesystem;

class Files : public FolderTest {
 protected:
  ModelInfo read(const pb::ModelProto& model) const {
    return read_model(write("m.onnx", model.SerializeAsString()));
  }
};

void add_value(pb::ValueInfoProto* v, const std::string& name, const std::vector<std::string>& dims) {
  v->set_name(name);
  auto* tensor = v->mutable_type()->mutable_tensor_type();
  tensor->set_elem_type(pb::TensorProto::FLOAT);
  tensor->mutable_shape();
  for (const std::string& d : dims) {
    auto* dim = tensor->mutable_shape()->add_dim();
    if (d.empty()) continue;
    if (std::isdigit(static_cast<unsigned char>(d[0])) != 0)
      dim->set_dim_value(std::stoll(d));
    else
      dim->set_dim_param(d);
  }
}

void set_scalar(pb::TensorProto* t, const std::string& name, float value) {
  t->set_name(name);
  t->set_data_type(pb::TensorProto::FLOAT);
  t->add_float_data(value);
}

pb::NodeProto* add_node(pb::GraphProto* g, const std::string& name, const std::string& domain,
                        const std::string& op, const std::vector<std::string>& inputs,
                        const std::string& output) {
  pb::NodeProto* n = g->add_node();
  n->set_name(name);
  n->set_domain(domain);
  n->set_op_type(op);
  for (const std::string& i : inputs) n->add_input(i);
  n->add_output(output);
  return n;
}

pb::ModelProto base_model() {
  pb::ModelProto m;
  m.set_ir_version(8);
  m.set_producer_name("test");
  auto* opset = m.add_opset_import();
  opset->set_version(17);
  add_value(m.mutable_graph()->add_input(), "x", {"batch", "3", ""});
  add_value(m.mutable_graph()->add_output(), "y", {"batch", "3", ""});
  return m;
}

// The manifest of a library with one operator that has the attributes radius and nsample.
LibraryFile library(const std::string& domain, const std::string& op, const std::string& fingerprint = "aa") {
  LibraryFile l;
  l.path = "/libs/lib" + op + ".so";
  l.manifest = {{"library", "lib_" + op},
                {"domain", domain},
                {"version", 1},
                {"operators",
                 {{{"name", op},
                   {"fingerprint", fingerprint},
                   {"attributes", {{{"name", "radius"}}, {{"name", "nsample"}}}}}}}};
  return l;
}

LibraryFile foreign() {
  LibraryFile l;
  l.path = "/libs/libforeign.so";
  return l;
}

TEST_F(Files, DescribesAModel) {
  pb::ModelProto m = base_model();
  auto* opset = m.add_opset_import();
  opset->set_domain("lab");
  opset->set_version(1);
  pb::GraphProto* g = m.mutable_graph();
  add_value(g->add_input(), "weight", {"3"});
  set_scalar(g->add_initializer(), "weight", 2);
  set_scalar(g->add_initializer(), "low", 0.08f);
  auto* metadata = m.add_metadata_props();
  metadata->set_key("k");
  metadata->set_value("v");
  // A custom node in an If branch sees a constant of the outer graph; one in a function of the model does
  // not.
  auto* condition = add_node(g, "c", "", "Constant", {}, "high");
  auto* value = condition->add_attribute();
  value->set_name("value");
  value->set_type(pb::AttributeProto::TENSOR);
  set_scalar(value->mutable_t(), "", 1);
  auto* branch = add_node(g, "if1", "", "If", {"x"}, "y")->add_attribute();
  branch->set_name("then_branch");
  branch->set_type(pb::AttributeProto::GRAPH);
  auto* inner = add_node(branch->mutable_g(), "q", "lab", "Query", {"x", "low", "", "high"}, "z");
  auto* attribute = inner->add_attribute();
  attribute->set_name("radius");
  attribute->set_type(pb::AttributeProto::FLOAT);
  attribute->set_f(0.08f);
  auto* function = m.add_functions();
  function->set_domain("local");
  function->set_name("Mine");
  auto* in_function = function->add_node();
  in_function->set_op_type("Query");
  in_function->set_domain("lab");
  in_function->add_input("low");
  in_function->add_output("o");
  add_node(g, "call", "local", "Mine", {"x"}, "unused");

  const ModelInfo info = read(m);
  EXPECT_EQ(info.ir_version, 8);
  EXPECT_EQ(info.opsets, (std::map<std::string, int64_t>{{"", 17}, {"lab", 1}}));
  EXPECT_EQ(info.metadata.at("k"), "v");
  ASSERT_EQ(info.inputs.size(), 2u);
  EXPECT_EQ(type_and_shape(info.inputs[0].type, info.inputs[0].rank_known, info.inputs[0].dims),
            "f32[batch,3,?]");
  EXPECT_FALSE(info.inputs[0].has_default);
  EXPECT_TRUE(info.inputs[1].has_default);
  EXPECT_EQ(info.functions, std::vector<std::string>{"local::Mine"});
  EXPECT_EQ(info.node_count, 5u);
  ASSERT_EQ(info.custom_nodes.size(), 2u);
  const CustomNode& q = info.custom_nodes[0];
  EXPECT_EQ(q.title(), "lab::Query (node 'q')");
  EXPECT_EQ(q.where, "then_branch of If 'if1'");
  EXPECT_EQ(q.constant_inputs, (std::map<size_t, std::string>{{1, "f32[] 0.08"}, {3, "f32[] 1.0"}}));
  ASSERT_EQ(q.attributes.size(), 1u);
  EXPECT_EQ(q.attributes[0].value.dump(), "0.08");
  EXPECT_EQ(info.custom_nodes[1].where, "function local::Mine");
  EXPECT_EQ(info.custom_nodes[1].title(), "lab::Query (the node that makes 'o')");
  EXPECT_TRUE(info.custom_nodes[1].constant_inputs.empty());
}

TEST_F(Files, InitializersBeforeIr4AreNotInputs) {
  pb::ModelProto m = base_model();
  m.set_ir_version(3);
  add_value(m.mutable_graph()->add_input(), "weight", {});
  set_scalar(m.mutable_graph()->add_initializer(), "weight", 2);
  const ModelInfo info = read(m);
  ASSERT_EQ(info.inputs.size(), 1u);
  EXPECT_EQ(info.inputs[0].name, "x");
}

TEST_F(Files, UnknownRankAndTypes) {
  pb::ModelProto m = base_model();
  m.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type()->clear_shape();
  m.mutable_graph()->mutable_output(0)->mutable_type()->mutable_sequence_type();
  const ModelInfo info = read(m);
  EXPECT_FALSE(info.inputs[0].rank_known);
  EXPECT_EQ(info.outputs[0].type, "sequence");
}

TEST_F(Files, MissingWeightsAreAProblem) {
  pb::ModelProto m = base_model();
  auto* t = m.mutable_graph()->add_initializer();
  t->set_name("w");
  t->set_data_type(pb::TensorProto::FLOAT);
  t->set_data_location(pb::TensorProto::EXTERNAL);
  auto* where = t->add_external_data();
  where->set_key("location");
  where->set_value("m.data");
  const auto problems = find_problems(read(m), {});
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find("keeps weights in 'm.data', which is not beside it"), std::string::npos)
      << problems[0];
  write("m.data", "1234");
  EXPECT_TRUE(find_problems(read(m), {}).empty());
}

TEST_F(Files, WhatIsNoModelSaysSo) {
  EXPECT_NE(error_of([&] { read_model((folder_ / "no.onnx").string()); }).find("No such file"),
            std::string::npos);
  EXPECT_NE(error_of([&] { read_model(write("e.onnx", "")); }).find("is empty"), std::string::npos);
  EXPECT_NE(
      error_of([&] { read_model(write("t.onnx", "plain text, nothing else")); }).find("not an ONNX model"),
      std::string::npos);
  EXPECT_NE(error_of([&] { read_model(write("o.ort", std::string("1234ORTM56789"))); }).find(".ort format"),
            std::string::npos);
  EXPECT_NE(error_of([&] { read_model(folder_.string()); }).find("is a folder"), std::string::npos);
}

TEST_F(Files, NoDamagedModelCrashes) {
  pb::ModelProto m = base_model();
  add_node(m.mutable_graph(), "q", "lab", "Query", {"x"}, "y");
  set_scalar(m.mutable_graph()->add_initializer(), "low", 0.08f);
  const std::string whole = m.SerializeAsString();
  size_t refused = 0;
  const auto try_it = [&](const std::string& bytes) {
    try {
      find_problems(read_model(write("d.onnx", bytes)), {});
    } catch (const Error&) {
      ++refused;
    }
  };
  for (size_t size = 0; size < whole.size(); ++size) try_it(whole.substr(0, size));
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {0x01, 0x40, 0xff}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      try_it(damaged);
    }
  }
  EXPECT_GT(refused, whole.size() / 2);
}

TEST_F(Files, DeeplyNestedModelsAreRefused) {
  // Each level is an If whose branch holds the next.
  pb::GraphProto graph;
  for (int depth = 0; depth < 200; ++depth) {
    pb::GraphProto outer;
    auto* branch = add_node(&outer, "n", "", "If", {"x"}, "y")->add_attribute();
    branch->set_name("then_branch");
    *branch->mutable_g() = graph;
    graph = outer;
  }
  pb::ModelProto m = base_model();
  *m.mutable_graph() = graph;
  EXPECT_THROW(read(m), Error);
}

// One custom node `op` of `domain` in a model, against libraries.
std::vector<std::string> problems_of(const std::string& domain, const std::string& op,
                                     const std::vector<LibraryFile>& libraries,
                                     const std::string& attribute = "radius",
                                     const std::map<std::string, std::string>& metadata = {}) {
  ModelInfo info;
  info.path = "m.onnx";
  info.metadata = metadata;
  CustomNode node;
  node.name = "n";
  node.domain = domain;
  node.op = op;
  node.attributes.push_back({attribute, "float", 1.0});
  info.custom_nodes = {node};
  return find_problems(info, libraries);
}

void expect_problem(const std::vector<std::string>& problems, const std::string& wanted) {
  ASSERT_EQ(problems.size(), 1u) << wanted;
  EXPECT_NE(problems[0].find(wanted), std::string::npos) << problems[0] << "\nwanted: " << wanted;
}

TEST(Problems, NamesTheCause) {
  EXPECT_TRUE(problems_of("lab", "Query", {library("lab", "Query")}).empty());
  expect_problem(problems_of("lab", "Query", {}), "no library was given. Pass the one that has lab::Query");
  expect_problem(problems_of("lab", "Query", {}, "radius", {{"opbridge.library.lab", "lab_ops 3"}}),
                 "exported with 'lab_ops 3'");
  expect_problem(problems_of("lab", "query", {library("lab", "Query")}), "did you mean 'Query'?");
  expect_problem(problems_of("lab", "Queryy", {library("lab", "Query")}), "did you mean 'Query'?");
  expect_problem(problems_of("lab", "Sample", {library("lab", "Query")}), "it has Query");
  expect_problem(problems_of("my_ops", "Query", {library("lab", "Query")}),
                 "the same operator under another domain: libQuery.so has lab::Query");
  expect_problem(problems_of("other", "Sample", {library("lab", "Query")}),
                 "none of the given libraries (libQuery.so) has operators of the domain 'other'");
  expect_problem(problems_of("lab", "Query", {library("lab", "Query")}, "radios"),
                 "unknown attribute 'radios'; did you mean 'radius'?");
  expect_problem(problems_of("lab", "Query", {library("lab", "Query")}, "colour"),
                 "it has radius or nsample");
  expect_problem(problems_of("lab", "Query", {library("lab", "Query"), library("lab", "Sample")}),
                 "takes only one library of a domain");
}

TEST(Problems, ForeignLibrariesAreLeftToOnnxRuntime) {
  EXPECT_TRUE(problems_of("lab", "Query", {foreign()}).empty());
  EXPECT_TRUE(problems_of("lab", "Query", {foreign(), library("other", "Sample")}).empty());
  expect_problem(problems_of("lab", "Queryy", {foreign(), library("lab", "Query")}), "did you mean 'Query'?");
}

TEST(Problems, ChangedDeclarationAsksForReExport) {
  const auto check = [](const std::string& recorded) {
    return problems_of(
        "lab", "Query", {library("lab", "Query", "new1")}, "radius",
        {{"opbridge.library.lab", "lab_ops 1"}, {"opbridge.fingerprint.lab::Query", recorded}});
  };
  EXPECT_TRUE(check("new1").empty());
  expect_problem(check("old0"), "Re-export the model");
  expect_problem(check("old0"), "fingerprint old0 of 'lab_ops 1', libQuery.so has new1");
}

TEST_F(Files, ReadsAnElfFile) {
  const ElfFacts facts = read_elf("/proc/self/exe");
  EXPECT_FALSE(facts.needed.empty());
  EXPECT_TRUE(is_elf("/proc/self/exe"));
  EXPECT_FALSE(is_elf(write("a.so", "text")));
  EXPECT_FALSE(is_elf((folder_ / "no.so").string()));
  const LibraryFile library = read_library("/proc/self/exe");
  EXPECT_FALSE(library.is_opbridge());
  const std::string message = error_of([] { read_operator_library("/proc/self/exe"); });
  EXPECT_NE(message.find("exports no RegisterCustomOps"), std::string::npos) << message;
}

TEST_F(Files, BadElfFilesSayWhy) {
  const std::string whole = read_file("/proc/self/exe");
  const auto with = [&](size_t at, char value) {
    std::string changed = whole;
    changed[at] = value;
    return write("x.so", changed);
  };
  EXPECT_NE(error_of([&] { read_elf(write("x.so", "text")); }).find("does not start as an ELF file"),
            std::string::npos);
  EXPECT_NE(error_of([&] { read_elf(write("x.so", "")); }).find("the file is empty"), std::string::npos);
  EXPECT_NE(error_of([&] { read_elf((folder_ / "no.so").string()); }).find("No such file"),
            std::string::npos);
  EXPECT_NE(error_of([&] { read_elf(with(EI_CLASS, ELFCLASS32)); }).find("32-bit"), std::string::npos);
  EXPECT_NE(error_of([&] { read_elf(with(EI_DATA, ELFDATA2MSB)); }).find("big-endian"), std::string::npos);
  const std::string other =
      error_of([&] { read_elf(with(offsetof(Elf64_Ehdr, e_machine), static_cast<char>(EM_RISCV))); });
  EXPECT_NE(other.find("is built for riscv, this machine is"), std::string::npos) << other;
  EXPECT_NE(
      error_of([&] { read_elf(with(offsetof(Elf64_Ehdr, e_type), ET_REL)); }).find("not a shared library"),
      std::string::npos);
  EXPECT_NE(error_of([&] { read_elf(write("x.so", whole.substr(0, whole.size() / 2))); }).find("cut off"),
            std::string::npos);
}

// The section headers are where damage leads anywhere: every byte of them, and of the file's header, changed.
TEST(Elf, NoDamagedFileCrashes) {
  const std::string whole = read_file(TEST_SMALL_LIBRARY);
  Elf64_Ehdr header;
  std::memcpy(&header, whole.data(), sizeof(header));
  ASSERT_GT(header.e_shnum, 5);
  EXPECT_TRUE(parse_elf(whole, "x.so").exports("small_library_function"));
  size_t refused = 0;
  const auto try_it = [&](size_t at, int flip) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ flip);
    try {
      parse_elf(damaged, "x.so");
    } catch (const Error&) {
      ++refused;
    }
  };
  for (const int flip : {0x01, 0x80, 0xff}) {
    for (size_t at = 0; at < sizeof(header); ++at) try_it(at, flip);
    for (size_t at = header.e_shoff; at < whole.size(); ++at) try_it(at, flip);
  }
  EXPECT_GT(refused, 50u);
}

}  // namespace
}  // namespace opbridge
