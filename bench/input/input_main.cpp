// Our side of the benchmark of the input pipeline:
//   tessera_bench_input write FOLDER COUNT WIDTH HEIGHT   JPEGs that compress about as photographs do, under FOLDER/train in ten classes
//   tessera_bench_input read TRAIN.yaml SECONDS           makes the job's samples in one thread for so long, and says how many a second
#include <turbojpeg.h>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/file_system.hpp"
#include "base/random.hpp"
#include "data/data.hpp"

namespace {

using namespace tessera;

constexpr int kClasses = 10, kQuality = 90;

// Waves of random direction and length, and a little noise.
std::vector<unsigned char> photograph(int width, int height, Random& random) {
  const auto drawn = [&](double bound) { return bound * static_cast<double>(random.below(1000)) / 1000; };
  struct Wave {
    double x, y, phase, height;
  };
  std::vector<unsigned char> pixels;
  pixels.reserve(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3);
  std::vector<Wave> waves;
  for (int i = 0; i < 8; ++i) waves.push_back({drawn(0.2), drawn(0.2), drawn(6.28), drawn(24)});
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int colour = 0; colour < 3; ++colour) {
        double value = 128 + drawn(12);
        for (const Wave& wave : waves) value += wave.height * std::sin(wave.x * x + wave.y * y + wave.phase * (1 + colour));
        pixels.push_back(static_cast<unsigned char>(std::clamp(value, 0.0, 255.0)));
      }
  return pixels;
}

void write(const std::filesystem::path& folder, int count, int width, int height) {
  Random random(1);
  const tjhandle handle = tjInitCompress();
  for (int i = 0; i < count; ++i) {
    const std::vector<unsigned char> pixels = photograph(width, height, random);
    unsigned char* bytes = nullptr;
    unsigned long size = 0;
    if (tjCompress2(handle, pixels.data(), width, 0, height, TJPF_RGB, &bytes, &size, TJSAMP_420, kQuality, 0))
      throw Error(ErrorCode::internal, tjGetErrorStr2(handle));
    const auto into = folder / "train" / std::to_string(i % kClasses);
    std::filesystem::create_directories(into);
    write_whole(real_file_system(), into / (std::to_string(i) + ".jpg"), std::string(reinterpret_cast<char*>(bytes), size));
    tjFree(bytes);
  }
  tjDestroy(handle);
}

void read(const std::filesystem::path& path, Seconds least) {
  const model::JobSpec job = model::read_job(path);
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  std::vector<std::vector<float>> real;
  std::vector<std::vector<std::int32_t>> whole;
  std::vector<data::Row> rows;
  for (const data::Field& field : dataset->fields()) {
    const auto count = static_cast<std::size_t>(field.count());
    if (field.type == data::FieldType::real) {
      rows.emplace_back(std::span(real.emplace_back(count)));
    } else {
      rows.emplace_back(std::span(whole.emplace_back(count)));
    }
  }
  const Seconds begin = real_clock().now();
  std::int64_t images = 0;
  for (std::int64_t step = 1; real_clock().now() - begin < least; ++step)
    for (const data::Draw& draw : dataset->draws(step, job.train.global_batch)) {
      dataset->fill(draw, rows);
      ++images;
    }
  std::printf("{\"images\": %lld, \"seconds\": %.6f}\n", static_cast<long long>(images), (real_clock().now() - begin).value);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.size() == 5 && words[0] == "write") {
      write(words[1], std::stoi(words[2]), std::stoi(words[3]), std::stoi(words[4]));
    } else if (words.size() == 3 && words[0] == "read") {
      read(words[1], Seconds{std::stod(words[2])});
    } else {
      std::fprintf(stderr, "usage: tessera_bench_input write FOLDER COUNT WIDTH HEIGHT | read TRAIN.yaml SECONDS\n");
      return 2;
    }
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return tessera::exit_code(error.code());
  }
}
