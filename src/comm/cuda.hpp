// Internal. A CUDA device, its streams and events, through the driver (libcuda.so.1), whose interface is the same under every version of
// the toolkit; a cudaStream_t of the runtime is a stream of the driver. Loaded when a rank has a GPU.
#pragma once

#include <memory>
#include <string>

namespace tessera::comm {

class CudaDevice {
 public:
  // Throws not_found where this host has no driver or no such device.
  explicit CudaDevice(int ordinal);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  // Identifies the device: equal in every process of every host, and different for every other device.
  std::string identity() const;

  // Makes the device the one of the calling thread; the one before comes back at the end.
  class Current {
   public:
    explicit Current(const CudaDevice& device);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const CudaDevice& device_;
  };

 private:
  friend class CudaStream;
  friend class CudaEvent;
  struct Driver;
  void check(int result, const char* what) const;

  std::unique_ptr<Driver> driver_;
  int ordinal_;
  int device_ = 0;
  void* context_ = nullptr;  // the one that the runtime uses too
};

// Made, recorded and waited for in threads whose device it is.
class CudaStream {
 public:
  // Beside all others; its kernels go before those of the streams that compute.
  explicit CudaStream(std::shared_ptr<const CudaDevice> device);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  void* get() const { return stream_; }

 private:
  std::shared_ptr<const CudaDevice> device_;
  void* stream_ = nullptr;
};

class CudaEvent {
 public:
  explicit CudaEvent(std::shared_ptr<const CudaDevice> device);
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  // Stands for what the stream has been given so far.
  void record(void* stream);
  // What the stream is given from now on begins after that.
  void hold(void* stream) const;
  bool reached() const;

 private:
  std::shared_ptr<const CudaDevice> device_;
  void* event_ = nullptr;
};

}  // namespace tessera::comm
