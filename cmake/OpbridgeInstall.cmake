# What `cmake --install` and the wheel put where. The result may be moved as a whole.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/opbridge)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/opbridge TYPE INCLUDE)
install(TARGETS opbridge_core opbridge_onnxruntime_adapter EXPORT opbridgeTargets)
install(TARGETS opbridge_validate EXPORT opbridgeTargets RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/opbridge)

# The operator libraries are plug-ins, not for linking.
foreach(library my_custom_ops pvn3d_custom_op)
  if(TARGET ${library})
    install(TARGETS ${library} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endforeach()

if(TARGET opbridge_runner_standalone)
  install(TARGETS opbridge_runner_standalone EXPORT opbridgeTargets)
endif()

if(TARGET opbridge_cli)
  # Python's scripts folder, where a wheel is built.
  set(bin_dir ${CMAKE_INSTALL_BINDIR})
  if(DEFINED SKBUILD_SCRIPTS_DIR)
    set(bin_dir ${SKBUILD_SCRIPTS_DIR})
  endif()
  install(TARGETS opbridge_cli RUNTIME DESTINATION ${bin_dir})
endif()

install(EXPORT opbridgeTargets NAMESPACE opbridge:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/opbridgeConfig.cmake.in
                              ${CMAKE_CURRENT_BINARY_DIR}/opbridgeConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/opbridgeConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/opbridgeConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/opbridgeConfigVersion.cmake
        DESTINATION ${package_dir})
foreach(file OpbridgeAddLibrary.cmake OpbridgeCuda.cmake library.cpp.in exports.map cuda_support.cpp ptxas_table.py)
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/${file} DESTINATION ${package_dir})
endforeach()
