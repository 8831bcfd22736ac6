// Whether libtorch's autograd sees what a thread computes.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace tessera::nn {

// While it lives, operations of this thread pass neither autograd nor what it knows of views. Passes of blocks, and steps of the optimizer,
// run so: they make their gradients themselves, and small operations are done sooner.
class WithoutAutograd {
  at::AutoDispatchBelowADInplaceOrView below_;
};

// While it lives, autograd sees operations of this thread, also within a WithoutAutograd, and records those that need gradients if it
// `records`. For blocks that call torch::autograd::grad: around what is to be differentiated. The backward pass needs none.
class WithAutograd {
 public:
  explicit WithAutograd(bool records) : before_(c10::impl::tls_local_dispatch_key_set()), mode_(records) {
    c10::impl::LocalDispatchKeySet keys = before_;
    keys.excluded_ = keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
    c10::impl::_force_tls_local_dispatch_key_set(keys);
  }
  ~WithAutograd() { c10::impl::_force_tls_local_dispatch_key_set(before_); }
  WithAutograd(const WithAutograd&) = delete;
  WithAutograd& operator=(const WithAutograd&) = delete;

 private:
  const c10::impl::LocalDispatchKeySet before_;
  const at::AutoGradMode mode_;
};

}  // namespace tessera::nn
