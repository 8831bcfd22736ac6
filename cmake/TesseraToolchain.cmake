# Compiler launcher, linker, sanitizers and the warnings our own code must pass.
find_program(TESSERA_CCACHE ccache)
if(TESSERA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TESSERA_CCACHE})
endif()
find_program(TESSERA_MOLD mold)
if(TESSERA_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
if(TESSERA_SANITIZE)
  # Checks for undefined behaviour make a test compile half as long again. They look at the rooms, and not at the tests' own code.
  string(REPLACE ",undefined" "" everywhere "${TESSERA_SANITIZE}")
  add_compile_options(-fsanitize=${everywhere} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${TESSERA_SANITIZE})
  if(TESSERA_SANITIZE MATCHES "undefined")
    set(TESSERA_ROOM_CHECKS -fsanitize=undefined -fno-sanitize-recover=undefined)
  endif()
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ looks for memory that it may free again and again; to take up to 1.8 GB a file costs an eighth less time.
  add_compile_options(--param=ggc-min-expand=300 --param=ggc-min-heapsize=1000000)
endif()
# The torch wheel is built with the C++11 ABI, which is also g++'s default; saying so keeps a foreign default out.
add_compile_definitions(_GLIBCXX_USE_CXX11_ABI=1)
# g++ 12 reports string concatenations as overlapping copies (GCC bug 105651): no -Wrestrict.
# Another compiler than those that the code is kept clean with may warn of more.
option(TESSERA_WERROR "Take warnings in our code as errors" ON)
if(TESSERA_WERROR)
  set(werror -Werror)
  set(TESSERA_NVCC_WARNINGS -Xcompiler -Wall,-Werror -Werror all-warnings)
endif()
set(TESSERA_WARNINGS -Wall -Wextra -Wpedantic ${werror} -Wno-unused-parameter -Wno-restrict)
if(TESSERA_SANITIZE)
  # With the sanitizers' checks between them g++ loses sight of assignments, and warns of values that are set.
  list(APPEND TESSERA_WARNINGS -Wno-maybe-uninitialized)
  if(CMAKE_BUILD_TYPE STREQUAL "Debug")
    # The rooms do the work of their tests: those of data take 15 s of CPU time so under the address sanitizer, 33 s with -O0. Their
    # compilation, which the cache keeps, takes 236 s in place of 153 s (with the tests optimized, too, 267 s, for 9 s of running).
    set(TESSERA_ROOM_OPTIMIZATION -O1)
  endif()
endif()
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Tests compile 40 % faster so than with -O3. What takes them long is done by the rooms.
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(TESSERA_TEST_OPTIMIZATION -Og)
endif()
