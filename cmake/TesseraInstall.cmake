# `cmake --install`: the programs, and what a plug-in is built against (find_package(Tessera)).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS tessera tessera-ps tessera-worker RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
# libtorch stays where it is: in the clone, as a rule, whose folders CMake would leave out.
set_target_properties(tessera-worker PROPERTIES INSTALL_RPATH "${torch_root}/lib")
if(TARGET tessera_parquet)
  install(TARGETS tessera_parquet LIBRARY DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# The C interface of parameter servers, for other frameworks.
install(TARGETS tessera_ps_c LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES src/ps/tessera_ps.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

foreach(room base model comm nn)
  install(DIRECTORY src/${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera FILES_MATCHING PATTERN "*.hpp")
endforeach()
install(FILES cmake/plugin.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Tessera)
configure_package_config_file(cmake/TesseraConfig.cmake.in ${CMAKE_BINARY_DIR}/TesseraConfig.cmake INSTALL_DESTINATION ${package}
                              PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_BINDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/TesseraConfigVersion.cmake COMPATIBILITY ExactVersion)
install(FILES ${CMAKE_BINARY_DIR}/TesseraConfig.cmake ${CMAKE_BINARY_DIR}/TesseraConfigVersion.cmake DESTINATION ${package})
