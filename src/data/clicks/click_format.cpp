#include "data/clicks/click_format.hpp"

namespace tessera::data {

std::unique_ptr<ClickFormat> make_click_format(model::ClickFormat format, const model::ModelSpec& model, const Where& where) {
  switch (format) {
    case model::ClickFormat::criteo: return make_criteo(model, where);
    case model::ClickFormat::libsvm: break;
  }
  return make_libsvm(model);
}

}  // namespace tessera::data
