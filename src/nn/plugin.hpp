// All that a plug-in includes: a shared library with models and blocks of a user's own.
//
//   #include <tessera/plugin.hpp>
//
//   TESSERA_PLUGIN() {
//     tessera::model::register_arch("mine", read_mine);         // Settings -> ModelSpec
//     tessera::nn::register_forward("mine_layer", my_forward);  // inputs, parameters -> outputs; gradients by autograd
//   }
//
// A job names it: `model: {plugin: ./libmine.so, arch: mine, ...}`. A block that makes its gradients itself derives from Block and is
// registered with register_block; an initializer of its own with register_initializer.
#pragma once

#include "model/plugin.hpp"       // IWYU pragma: export
#include "nn/autograd.hpp"        // IWYU pragma: export
#include "nn/autograd_block.hpp"  // IWYU pragma: export
#include "nn/block.hpp"           // IWYU pragma: export
#include "nn/dropout.hpp"         // IWYU pragma: export
#include "nn/initializers.hpp"    // IWYU pragma: export

// Begins the function that is called once when the library is loaded, before a model is read.
#define TESSERA_PLUGIN()                                                                                             \
  extern "C" __attribute__((visibility("default"))) const char* tessera_plugin_version() { return TESSERA_VERSION; } \
  extern "C" __attribute__((visibility("default"))) void tessera_register_plugin()
