#pragma once

#include <cstdint>

#include "kernels/attention/cuda/flash_sm90/forward_config.cuh"
#include "kernels/attention/cuda/flash_sm90/params.hpp"
#include "kernels/attention/cuda/flash_sm90/softmax.cuh"
#include "kernels/attention/cuda/flash_sm90/store_rows.cuh"
#include "kernels/attention/cuda/flash_sm90/work_item.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/ptx/wgmma.cuh"

/// A consumer warpgroup: the products, the softmax between them, and what is stored.
namespace warpmeter::attention::flash_sm90 {

/// S = Q K^T of this warpgroup's rows and a key block; issued, not awaited.
template <class T, class Config>
__device__ __forceinline__ void multiply_scores(float (&s)[Config::kBlockN / 2], std::uint64_t query,
                                                std::uint64_t key) {
#pragma unroll
  for (int k = 0; k < Config::kHeadDim / 16; ++k) {
    const int panel = k / 4, column = k % 4 * 32;
    ptx::Wgmma<T, Config::kBlockN>::shared_shared(s, query + (panel * Config::kQueryPanelBytes + column) / 16,
                                                  key + (panel * Config::kKeyPanelBytes + column) / 16, k > 0);
  }
}

/// O += P V, or O = P V without `accumulate`; issued, not awaited.
template <class T, class Config>
__device__ __forceinline__ void multiply_values(float (&o)[Config::kHeadDim / 2],
                                                const std::uint32_t (&p)[Config::kBlockN / 4], std::uint64_t value,
                                                int accumulate) {
#pragma unroll
  for (int k = 0; k < Config::kBlockN / 16; ++k) {
    ptx::Wgmma<T, Config::kHeadDim>::template registers_shared<true>(o, p + 4 * k, value + k * (16 * 128 / 16),
                                                                     k > 0 ? 1 : accumulate);
  }
}

/// What a step is to its item. `first`: the item's first key block, with nothing left over from the item before;
/// `next_item`: the same while the last product of the item before, and its storing, are still to be done.
enum class Step { first, next_item, masked, whole };

/// One warpgroup's view: 64 query rows of every item.
template <class T, class Config>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const ForwardParams& params, std::uint32_t shared, int consumer)
      : params_(params),
        shared_(shared),
        consumer_(consumer),
        query_(ptx::swizzled_descriptor(shared + Config::kQueryOffset + consumer * Config::kQueryBytes,
                                        Config::kQueryPanelBytes)),
        keys_(ptx::swizzled_descriptor(shared + Config::kKeyOffset, Config::kKeyPanelBytes)),
        values_(ptx::swizzled_descriptor(shared + Config::kValueOffset, Config::kKeyPanelBytes)) {}

  __device__ __forceinline__ void run() {
    if (consumer_ == Config::kConsumers - 1) pass_turn();
    bool pending = false;  // the last product of the item before, and its storing
    for (RingPosition<Config::kWorkSlots> slot;; slot = slot.next()) {
      ptx::mbarrier_wait(shared_ + Config::kWorkFull + 8 * slot.stage(), slot.phase());
      const auto field = [&](int i) {
        // The same for the whole warp; said so, it can live in a uniform register.
        return __shfl_sync(0xffffffffu, load_field(slot, i), 0);
      };
      const int first_row = field(0) + 64 * consumer_, tile_blocks = field(1);
      if (tile_blocks < 0) break;
      const int blocks = is_row(params_, first_row) ? WorkItem::blocks_seen<Config>(params_, first_row + 64) : 0;
      const int whole = min(blocks, WorkItem::blocks_whole<Config>(params_, first_row));
      // Blocks for the other warpgroups alone come first in the rings; the values of what is pending come before
      // theirs.
      const int skipped = tile_blocks - blocks;
      if (pending && blocks == 0) {
        finish();
        pending = false;
      }
#pragma unroll 1
      for (int i = 0; i < skipped; ++i) {
        skip_keys();
        if (!pending) skip_values(1);
      }
      ptx::mbarrier_wait(query_barrier(Config::kQueryFull), queries_.phase());
      if (blocks == 0) {
        release_queries();
        begin_item(slot);
        float inverse[2];
        close_rows(params_, stored_rows(), state_, inverse);
        store(inverse);  // zeros
        continue;
      }
      int block = blocks - 1;
      if (!pending) begin_item(slot);
      if (pending) {
        step<Step::next_item>(slot, first_row, block, whole <= block, skipped);
      } else {
        step<Step::first>(slot, first_row, block, whole <= block);
      }
      --block;
      pending = true;
      if constexpr (Config::kCausal) {
#pragma unroll 1
        for (; block >= whole; --block) step<Step::masked>(slot, first_row, block, true);
      }
#pragma unroll 1
      for (; block >= 0; --block) step<Step::whole>(slot, first_row, block, false);
    }
    if (pending) finish();
    if (consumer_ == 0) await_turn();  // takes in the turn that was passed last
    if (Config::kStagedOutput && threadIdx.x % 32 == 0) ptx::bulk_wait_read();
  }

 private:
  // Named barrier 1 + c: consumer c's turn at the tensor cores. Its own threads and its predecessor's meet there.
  __device__ __forceinline__ void await_turn() {
    if constexpr (Config::kPingPong) ptx::named_barrier_sync(1 + consumer_, 256);
  }
  __device__ __forceinline__ void pass_turn() {
    if constexpr (Config::kPingPong) {
      ptx::named_barrier_arrive(consumer_ + 1 == Config::kConsumers ? 1 : 2 + consumer_, 256);
    }
  }
  static __device__ __forceinline__ void release(std::uint32_t barrier) {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(barrier);
  }
  /// A member of the WorkItem in `slot`, by its place.
  __device__ __forceinline__ int load_field(RingPosition<Config::kWorkSlots> slot, int index) const {
    return static_cast<int>(ptx::load_shared_u32(shared_ + Config::kWorkItems + 16 * slot.stage() + 4 * index));
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t query_barrier(std::uint32_t offset) const {
    return shared_ + offset + 8 * (queries_.stage() * Config::kConsumers + consumer_);
  }
  __device__ __forceinline__ void release_queries() {
    release(query_barrier(Config::kQueryEmpty));
    queries_ = queries_.next();
  }
  __device__ __forceinline__ void await_keys() const {
    ptx::mbarrier_wait(shared_ + Config::kKeyFull + 8 * key_.stage(), key_.phase());
  }
  __device__ __forceinline__ void release_keys() {
    release(shared_ + Config::kKeyEmpty + 8 * key_.stage());
    key_ = key_.next();
  }
  __device__ __forceinline__ void await_values() const {
    ptx::mbarrier_wait(shared_ + Config::kValueFull + 8 * value_.stage(), value_.phase());
  }
  __device__ __forceinline__ void release_values() {
    release(shared_ + Config::kValueEmpty + 8 * value_.stage());
    value_ = value_.next();
  }
  __device__ __forceinline__ void skip_keys() {
    await_turn();
    pass_turn();
    await_keys();
    release_keys();
  }
  __device__ __forceinline__ void skip_values(int count) {
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      await_values();
      release_values();
    }
  }

  __device__ __forceinline__ void begin_item(RingPosition<Config::kWorkSlots> slot) {
    stored_ = slot;
    state_.reset();
  }
  /// The first of this thread's rows, counted from the warpgroup's first.
  static __device__ __forceinline__ int thread_row() {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    return thread / 32 * 16 + thread % 32 / 4;
  }
  /// Of the item that o_ and state_ belong to.
  __device__ __forceinline__ RowsOfHead stored_rows() const {
    return {load_field(stored_, 2), load_field(stored_, 3), load_field(stored_, 0) + 64 * consumer_ + thread_row()};
  }
  /// Writes its output and gives its slot back.
  __device__ __forceinline__ void store(const float (&inverse)[2]) {
    clear_unseen(o_, inverse);
    if constexpr (Config::kStagedOutput) {
      const int warp = 4 * consumer_ + static_cast<int>(threadIdx.x) % 128 / 32;
      send_output<T, Config>(params_, stored_rows(), shared_ + Config::kOutputOffset + warp * Config::kOutputBytes, o_,
                             inverse);
    } else {
      store_output<T>(params_, stored_rows(), o_, inverse);
    }
    __syncwarp();
    release(shared_ + Config::kWorkEmpty + 8 * stored_.stage());
    accumulate_ = 0;
  }
  __device__ __forceinline__ void mask(float (&s)[Config::kBlockN / 2], int first_row, int block) const {
    int limit[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int visible = params_.kv_len;
      if constexpr (Config::kCausal) {
        visible = min(visible, first_row + thread_row() + 8 * r + 1 + (params_.kv_len - params_.seq_len));
      }
      limit[r] = visible - block * Config::kBlockN - 2 * (static_cast<int>(threadIdx.x) % 4);
    }
    mask_scores(s, limit);
  }

  /// The product of p_ and the values at hand; issued and committed, not awaited.
  __device__ __forceinline__ void add_values() {
    multiply_values<T, Config>(o_, p_, values_ + value_.stage() * (Config::kKeyBytes / 16), accumulate_);
    ptx::wgmma_commit();
    accumulate_ = 1;
  }

  /// `skipped`: with next_item, blocks of the new item whose values are still to be passed over.
  template <Step kStep>
  __device__ __forceinline__ void step(RingPosition<Config::kWorkSlots> slot, int first_row, int block, bool masked,
                                       int skipped = 0) {
    constexpr bool kProduct = kStep != Step::first;  // O += P V beside the new scores
    constexpr bool kNewItem = kStep == Step::first || kStep == Step::next_item;
    float s[Config::kBlockN / 2];
    await_keys();
    await_turn();
    ptx::hold_registers(s);
    ptx::wgmma_fence();
    multiply_scores<T, Config>(s, query_ + queries_.stage() * (Config::kConsumers * Config::kQueryBytes / 16),
                               keys_ + key_.stage() * (Config::kKeyBytes / 16));
    ptx::wgmma_commit();
    if constexpr (kProduct) {
      await_values();
      ptx::hold_registers(o_);
      ptx::hold_registers(p_);
      ptx::wgmma_fence();
      add_values();
    }
    pass_turn();
    float inverse[2];
    if constexpr (kStep == Step::next_item) {
      close_rows(params_, stored_rows(), state_, inverse);
      state_.reset();
    }
    ptx::wgmma_wait<kProduct ? 1 : 0>();
    ptx::hold_registers(s);
    release_keys();
    if (block == 0) release_queries();
    if constexpr (kStep != Step::whole) {
      if (masked) mask(s, first_row, block);
    }
    float rescale[2];
    const bool moved = softmax_step<kStep != Step::whole>(s, state_, rescale, params_.scale_log2);
    ptx::hold_registers(s);
    if constexpr (kProduct) {
      // The next keys may well be there by now. That this is a branch, and that it asks for the sums (never negative),
      // matters more: else ptxas puts the exponentials behind the wait for O, and nothing runs beside O's product.
      if (__any_sync(0xffffffffu, state_.sum[0] + state_.sum[1] < 0.0f) || block > 0) await_keys();
      ptx::wgmma_wait<0>();
      ptx::hold_registers(o_);
      release_values();
      if constexpr (kNewItem) {
        skip_values(skipped);
        store(inverse);
        stored_ = slot;
      } else if (moved) {
        rescale_rows(o_, rescale);
      }
    }
    pack_probabilities<T>(s, p_);
  }

  /// The last product of an item on its own, and its storing.
  __device__ __forceinline__ void finish() {
    await_values();
    ptx::hold_registers(o_);
    ptx::hold_registers(p_);
    ptx::wgmma_fence();
    add_values();
    ptx::wgmma_wait<0>();
    ptx::hold_registers(o_);
    release_values();
    float inverse[2];
    close_rows(params_, stored_rows(), state_, inverse);
    store(inverse);
  }

  const ForwardParams& params_;
  const std::uint32_t shared_;
  const int consumer_;
  const std::uint64_t query_, keys_, values_;  // descriptors of the first stage
  RingPosition<Config::kQueryStages> queries_;
  RingPosition<Config::kStages> key_, value_;
  RingPosition<Config::kWorkSlots> stored_;  // the slot of the item that o_ and state_ belong to
  RowState state_;
  int accumulate_ = 0;  // 1 when o_ holds something of its item
  float o_[Config::kHeadDim / 2];
  std::uint32_t p_[Config::kBlockN / 4];
};

}  // namespace warpmeter::attention::flash_sm90
