// Jobs and clusters for the tests of plan/ and sim/.
#pragma once

#include <string>

#include "base/error.hpp"
#include "cluster/cluster.hpp"
#include "model/job.hpp"

namespace tessera::plan {

struct JobShape {
  int layers = 4;
  int hidden = 64;
  int heads = 4;
  int kv_heads = 4;
  int ffn = 128;
  int seq = 32;
  int vocab = 256;
  bool tied = false;
  int global_batch = 8;
  const char* precision = "fp32";
  double clip = 1;
  std::string cluster = "auto";
  std::string parallel = "auto";
};

inline std::string yaml_of(const JobShape& shape) {
  return text("name: test\nmodel: {arch: llama, hidden: ", shape.hidden, ", layers: ", shape.layers, ", heads: ", shape.heads,
              ", kv_heads: ", shape.kv_heads, ", ffn: ", shape.ffn, ", seq: ", shape.seq, ", vocab: ", shape.vocab,
              ", tied: ", shape.tied ? "true" : "false", "}\ndata: {source: synthetic}\ntrain: {global_batch: ", shape.global_batch,
              ", precision: ", shape.precision, ", optimizer: {clip: ", shape.clip, "}}\ncluster: ", shape.cluster,
              "\nparallel: ", shape.parallel, "\n");
}

inline model::JobSpec job_of(const JobShape& shape) { return model::read_job(ConfigNode::parse(yaml_of(shape), "train.yaml")); }

inline model::JobSpec preset_job(const std::string& preset, int batch, const std::string& parallel = "auto") {
  return model::read_job(ConfigNode::parse(text("name: t\nmodel: {preset: ", preset, "}\ndata: {source: synthetic}\ntrain: {global_batch: ",
                                                batch, ", precision: bf16}\nparallel: ", parallel, "\n"),
                                           "train.yaml"));
}

inline cluster::ClusterSpec cpu_cluster(int cores, int nodes = 1, std::int64_t memory_mib = 64 << 10) {
  return cluster::read_cluster(
      ConfigNode::parse(text("name: hosts\ngroups:\n  - {name: cpu, device: 'cpu:zen4', cores: ", cores, ", memory: ", memory_mib,
                             " MiB, nodes: ", nodes, ", inside: shm, network: tcp-10g}\n"),
                        "cluster.yaml"));
}

inline cluster::ClusterSpec gpu_cluster(int nodes, int per_node, const std::string& device = "a100-80") {
  return cluster::read_cluster(ConfigNode::parse(text("name: gpus\ngroups:\n  - {name: gpu, device: ", device, ", nodes: ", nodes,
                                                      ", devices_per_node: ", per_node, ", inside: nvlink3, network: rdma-100g}\n"),
                                                 "cluster.yaml"));
}

}  // namespace tessera::plan
