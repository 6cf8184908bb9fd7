# Puts the files that `opbridge new` writes into the command, as C++ text in ${templates_source}: so they are found
# wherever the command is installed.
set(names CMakeLists.txt Makefile README.md requirements.txt .gitignore inference.cpp export_@op@.py test_@op@.py
    @op@/@op@.h @op@/@op@_cpu.cpp @op@/@op@_cuda.cu)
set(code "// Generated from templates/new.\n#include \"templates.h\"\n\nconst Template kTemplates[] = {\n")
foreach(name IN LISTS names)
  set(file ${CMAKE_CURRENT_LIST_DIR}/new/${name}.in)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} text)
  string(APPEND code "{\"${name}\", R\"template(${text})template\"},\n")
endforeach()
string(APPEND code "{nullptr, nullptr}};\n")
set(templates_source ${CMAKE_CURRENT_BINARY_DIR}/templates.cpp)
file(WRITE ${templates_source}.new "${code}")
file(COPY_FILE ${templates_source}.new ${templates_source} ONLY_IF_DIFFERENT)
