# tessera_add_room(NAME): enters src/NAME, and builds tests/NAME/*_test.cpp as one program when tests are on.
# tessera_room(NAME DEPENDS targets...): called by src/NAME/CMakeLists.txt; every .cpp of the folder is the room, but for
# *_main.cpp (programs) and *_module.cpp (what is loaded on demand).
# tessera_precompile(FIRST OTHERS... HEADERS headers...): compiles the headers once, with the options of FIRST, for all these targets.
function(tessera_add_room name)
  if(NOT EXISTS ${CMAKE_SOURCE_DIR}/src/${name}/CMakeLists.txt)
    return()
  endif()
  add_subdirectory(${CMAKE_SOURCE_DIR}/src/${name} ${CMAKE_BINARY_DIR}/src/${name})
  file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${name}/*_test.cpp)
  if(TESSERA_TESTS AND tests)
    file(GLOB helpers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${name}/*_helper.cpp)
    add_executable(tessera_${name}_tests ${tests} ${helpers})
    target_compile_options(tessera_${name}_tests PRIVATE ${TESSERA_WARNINGS} ${TESSERA_TEST_OPTIMIZATION})
    target_include_directories(tessera_${name}_tests PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_link_libraries(tessera_${name}_tests PRIVATE tessera::${name} ${TESSERA_${name}_TESTS_USE} tessera_test_folders ${RAPIDCHECK_LIBRARY}
                          GTest::gmock GTest::gtest_main)
    set_property(GLOBAL APPEND PROPERTY TESSERA_TEST_PROGRAMS tessera_${name}_tests)
    include(GoogleTest)
    # The same random cases in every run; another RC_PARAMS by hand draws others. A sanitizer looks at what each case does, and what
    # holds for all of them the release build has asked of a hundred: a fifth of them will do. A case of train trains a model, and RandomPlans
    # trains two hundred of every kind of plan.
    set(random_cases seed=20260713)
    if(TESSERA_SANITIZE)
      string(APPEND random_cases " max_success=20")
    elseif(name STREQUAL train)
      string(APPEND random_cases " max_success=30")
    endif()
    # CTest begins with these: the tests that take minutes would otherwise begin last, and end long after all others.
    set(cost 0)
    if(name MATCHES "^(cli|search|train)$")
      set(cost 1)
    endif()
    gtest_discover_tests(tessera_${name}_tests DISCOVERY_TIMEOUT 60 PROPERTIES LABELS ${name} TIMEOUT 1200 COST ${cost}
                         ENVIRONMENT "RC_PARAMS=${random_cases}")
  endif()
endfunction()

function(tessera_room name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "_(main|module)\\.cpp$")
  if(NOT sources)
    # A room that is headers only.
    add_library(tessera_${name} INTERFACE)
    add_library(tessera::${name} ALIAS tessera_${name})
    target_include_directories(tessera_${name} INTERFACE ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(tessera_${name} INTERFACE ${ARG_DEPENDS})
    return()
  endif()
  add_library(tessera_${name} STATIC ${sources})
  add_library(tessera::${name} ALIAS tessera_${name})
  target_include_directories(tessera_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_compile_options(tessera_${name} PRIVATE ${TESSERA_WARNINGS} ${TESSERA_ROOM_OPTIMIZATION} ${TESSERA_ROOM_CHECKS})
  target_link_libraries(tessera_${name} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE_DEPENDS})
  # Several files at a time: most of what each takes to compile are headers that the others have, too. A file's own names may then not be
  # those of another file of its room; the debug build compiles each alone, and so finds an include that is missing.
  set_target_properties(tessera_${name} PROPERTIES UNITY_BUILD ${TESSERA_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  if(TESSERA_UNITY)
    # g++ then takes a file for a header, which should keep its types out of unnamed namespaces.
    target_compile_options(tessera_${name} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

function(tessera_precompile first)
  cmake_parse_arguments(ARG "" "" "HEADERS" ${ARGN})
  target_precompile_headers(${first} PRIVATE ${ARG_HEADERS})
  foreach(target ${ARG_UNPARSED_ARGUMENTS})
    target_precompile_headers(${target} REUSE_FROM ${first})
  endforeach()
  # ccache keeps no file that is compiled so without -fpch-preprocess. With strings from a precompiled header g++ 12 finds copies that
  # overlap or go too far in concatenations (GCC bug 105651, as -Wrestrict); the debug build, which precompiles nothing, warns of both.
  foreach(target ${first} ${ARG_UNPARSED_ARGUMENTS})
    target_compile_options(${target} PRIVATE -fpch-preprocess -Wno-array-bounds -Wno-stringop-overflow)
  endforeach()
endfunction()
