#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/attention/cuda/flash_sm90/forward_config.cuh"
#include "kernels/attention/cuda/flash_sm90/params.hpp"
#include "kernels/attention/cuda/flash_sm90/softmax.cuh"
#include "kernels/attention/cuda/flash_sm90/store_rows.cuh"
#include "kernels/attention/cuda/ptx/barrier.cuh"
#include "kernels/attention/cuda/ptx/mbarrier.cuh"
#include "kernels/attention/cuda/ptx/shared_address.cuh"
#include "kernels/attention/cuda/ptx/tma.cuh"
#include "kernels/attention/cuda/ptx/warpgroup.cuh"
#include "kernels/attention/cuda/ptx/wgmma.cuh"

/// FlashAttention forward for sm_90a. A block stays on its multiprocessor and draws work items (a tile of queries of
/// one head) until none is left. Its first warpgroup draws them and fills shared memory through the copy engine; the
/// others multiply, 64 query rows each. Source: Shah et al., "FlashAttention-3", 2024. A consumer's step, whose key
/// block may be the next one of its item or the first (the last keys) of its next item:
///
///     S' = Q K'^T  |  O += P V     both under way at once
///     softmax of S'                beside O's product
///     O takes the new maximum; or, where an item ends, O / sum and LSE are stored
///     P = S'
namespace warpmeter::attention::flash_sm90 {

/// A tile of queries of one head, as the producer hands it on.
struct WorkItem {
  int first_row;
  int blocks;  ///< key blocks of which some row of the tile sees a key; -1: no item is left
  int batch, head;

  template <class Config>
  static __device__ __forceinline__ WorkItem make(const ForwardParams& params, int item) {
    WorkItem work;
    int batch_head, tile;
    if (!Config::kCausal || item < params.mixed_heads * params.tiles) {
      batch_head = item / params.tiles;
      tile = item - batch_head * params.tiles;
      if constexpr (Config::kCausal) tile = params.tiles - 1 - tile;
    } else {
      const int rest = item - params.mixed_heads * params.tiles;
      const int heads = params.heads - params.mixed_heads;
      const int order = rest / heads;
      batch_head = params.mixed_heads + rest - order * heads;
      tile = params.tiles - 1 - order;
    }
    work.batch = batch_head / params.num_heads;
    work.head = batch_head - work.batch * params.num_heads;
    work.first_row = tile * Config::kBlockM;
    work.blocks = blocks_seen<Config>(params, work.first_row + Config::kBlockM);
    return work;
  }

  /// Keys, and key blocks, that the rows before `end_row` see.
  template <class Config>
  static __device__ __forceinline__ int keys_seen(const ForwardParams& params, int end_row) {
    if constexpr (!Config::kCausal) return params.kv_len;
    return max(0, min(params.kv_len, min(end_row, params.seq_len) + (params.kv_len - params.seq_len)));
  }
  template <class Config>
  static __device__ __forceinline__ int blocks_seen(const ForwardParams& params, int end_row) {
    return (keys_seen<Config>(params, end_row) + Config::kBlockN - 1) / Config::kBlockN;
  }
  /// Key blocks that `row`, and with it all that follow, sees whole.
  template <class Config>
  static __device__ __forceinline__ int blocks_whole(const ForwardParams& params, int row) {
    int keys = params.kv_len;
    if constexpr (Config::kCausal) keys = max(0, min(keys, row + 1 + (params.kv_len - params.seq_len)));
    return keys / Config::kBlockN;
  }
};

/// A place in a ring of stages and the parity of its round, in one register.
template <int kStages>
struct RingPosition {
  std::uint32_t place = 0;  ///< in two rounds
  [[nodiscard]] __device__ __forceinline__ std::uint32_t stage() const {
    return place < kStages ? place : place - kStages;
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t phase() const { return place < kStages ? 0 : 1; }
  [[nodiscard]] __device__ __forceinline__ RingPosition next() const {
    return {place + 1 == 2 * kStages ? 0 : place + 1};
  }
};

template <class Config>
__device__ __forceinline__ void load_keys(const CUtensorMap* map, std::uint32_t base, std::uint32_t full,
                                          std::uint32_t empty, RingPosition<Config::kStages> position,
                                          const WorkItem& work, int kv_head, int block) {
  const std::uint32_t barrier = full + 8 * position.stage();
  ptx::mbarrier_wait(empty + 8 * position.stage(), position.phase() ^ 1);
  ptx::mbarrier_arrive_expect(barrier, Config::kKeyBytes);
#pragma unroll
  for (int panel = 0; panel < Config::kPanels; ++panel) {
    ptx::tma_load_4d(base + position.stage() * Config::kKeyBytes + panel * Config::kKeyPanelBytes, map, barrier,
                     panel * 64, block * Config::kBlockN, kv_head, work.batch, ptx::L2Policy::evict_last);
  }
}

/// Brings what an item will begin with into the L2 cache: its queries and its last key block.
template <class Config>
__device__ __forceinline__ void prefetch_item(const ForwardParams& params, const WorkItem& work) {
  const int kv_head = work.head / params.group_size;
#pragma unroll 1
  for (int panel = 0; panel < Config::kPanels; ++panel) {
#pragma unroll 1
    for (int consumer = 0; consumer < Config::kConsumers; ++consumer) {
      ptx::tma_prefetch_4d(&params.q, panel * 64, work.first_row + 64 * consumer, work.head, work.batch);
    }
    const int row = (work.blocks - 1) * Config::kBlockN;
    ptx::tma_prefetch_4d(&params.k, panel * 64, row, kv_head, work.batch);
    ptx::tma_prefetch_4d(&params.v, panel * 64, row, kv_head, work.batch);
  }
}

/// The thread that draws work items and hands them to the loading threads and the consumers: what it takes, an atomic
/// and some divisions, nobody waits for. It draws late, when the keys of the item before are nearly all asked for:
/// what a block has drawn no other can take over, and they shall finish together.
template <class Config>
__device__ __forceinline__ void schedule(const ForwardParams& params, std::uint32_t shared) {
  int item = static_cast<int>(blockIdx.x);
  std::uint32_t demand = 0;
  for (RingPosition<Config::kWorkSlots> slot;; slot = slot.next()) {
    WorkItem work{0, -1, 0, 0};
    if (item < params.items) {
      work = WorkItem::make<Config>(params, item);
      if (Config::kPrefetch && work.blocks > 0) prefetch_item<Config>(params, work);
    }
    ptx::mbarrier_wait(shared + Config::kWorkEmpty + 8 * slot.stage(), slot.phase() ^ 1);
    ptx::store_shared_v4(shared + Config::kWorkItems + 16 * slot.stage(), work.first_row, work.blocks, work.batch,
                         work.head);
    ptx::mbarrier_arrive(shared + Config::kWorkFull + 8 * slot.stage());
    if (work.blocks < 0) break;
    ptx::mbarrier_wait(shared + Config::kWorkDemand, demand);
    demand ^= 1;
    item = static_cast<int>(gridDim.x + atomicAdd(&params.work_counter->next, 1u));
  }
  // The last block to come here leaves the counter as it found it.
  __threadfence();
  if (atomicAdd(&params.work_counter->finished, 1u) == gridDim.x - 1) {
    __threadfence();
    params.work_counter->next = 0;
    params.work_counter->finished = 0;
  }
}

/// A loading thread's way through the work items; false behind the last.
template <class Config>
__device__ __forceinline__ bool take_item(std::uint32_t shared, RingPosition<Config::kWorkSlots>& slot,
                                          WorkItem& work) {
  ptx::mbarrier_wait(shared + Config::kWorkFull + 8 * slot.stage(), slot.phase());
  std::uint32_t first_row, blocks, batch, head;
  ptx::load_shared_v4(shared + Config::kWorkItems + 16 * slot.stage(), first_row, blocks, batch, head);
  work = {static_cast<int>(first_row), static_cast<int>(blocks), static_cast<int>(batch), static_cast<int>(head)};
  ptx::mbarrier_arrive(shared + Config::kWorkEmpty + 8 * slot.stage());
  slot = slot.next();
  return work.blocks >= 0;
}

/// The thread that feeds the copy engine with queries and keys: an item's last key block, its queries, the other
/// blocks.
template <class Config>
__device__ __forceinline__ void load_queries_and_keys(const ForwardParams& params, std::uint32_t shared) {
  ptx::prefetch_tensor_map(&params.q);
  ptx::prefetch_tensor_map(&params.k);
  RingPosition<Config::kWorkSlots> slot;
  RingPosition<Config::kQueryStages> query;
  RingPosition<Config::kStages> key;
  WorkItem work;
  while (take_item<Config>(shared, slot, work)) {
    const int kv_head = work.head / params.group_size;
    constexpr int kDrawAt = 2;  // blocks yet to be asked for beyond this one
    const auto load_block = [&](int block) {
      if (block == kDrawAt) ptx::mbarrier_arrive(shared + Config::kWorkDemand);
      load_keys<Config>(&params.k, shared + Config::kKeyOffset, shared + Config::kKeyFull, shared + Config::kKeyEmpty,
                        key, work, kv_head, block);
      key = key.next();
    };
    if (work.blocks <= kDrawAt) ptx::mbarrier_arrive(shared + Config::kWorkDemand);
    if (work.blocks > 0) load_block(work.blocks - 1);
#pragma unroll
    for (int consumer = 0; consumer < Config::kConsumers; ++consumer) {
      const std::uint32_t place = query.stage() * Config::kConsumers + consumer;
      const std::uint32_t barrier = shared + Config::kQueryFull + 8 * place;
      ptx::mbarrier_wait(shared + Config::kQueryEmpty + 8 * place, query.phase() ^ 1);
      ptx::mbarrier_arrive_expect(barrier, Config::kQueryBytes);
#pragma unroll
      for (int panel = 0; panel < Config::kPanels; ++panel) {
        ptx::tma_load_4d(shared + Config::kQueryOffset + place * Config::kQueryBytes + panel * Config::kQueryPanelBytes,
                         &params.q, barrier, panel * 64, work.first_row + 64 * consumer, work.head, work.batch,
                         ptx::L2Policy::evict_first);
      }
    }
    query = query.next();
#pragma unroll 1  // registers
    for (int block = work.blocks - 2; block >= 0; --block) load_block(block);
  }
}

/// The thread that feeds the copy engine with values.
template <class Config>
__device__ __forceinline__ void load_values(const ForwardParams& params, std::uint32_t shared) {
  ptx::prefetch_tensor_map(&params.v);
  RingPosition<Config::kWorkSlots> slot;
  RingPosition<Config::kStages> value;
  WorkItem work;
  while (take_item<Config>(shared, slot, work)) {
    const int kv_head = work.head / params.group_size;
#pragma unroll 1
    for (int block = work.blocks - 1; block >= 0; --block) {
      load_keys<Config>(&params.v, shared + Config::kValueOffset, shared + Config::kValueFull,
                        shared + Config::kValueEmpty, value, work, kv_head, block);
      value = value.next();
    }
  }
}

/// S = Q K^T of this warpgroup's rows and the first kKeys of a key block; issued, not awaited.
template <class T, class Config, int kKeys>
__device__ __forceinline__ void multiply_scores(float (&s)[kKeys / 2], std::uint64_t query, std::uint64_t key) {
#pragma unroll
  for (int k = 0; k < Config::kHeadDim / 16; ++k) {
    const int panel = k / 4, column = k % 4 * 32;
    ptx::Wgmma<T, kKeys>::shared_shared(s, query + (panel * Config::kQueryPanelBytes + column) / 16,
                                        key + (panel * Config::kKeyPanelBytes + column) / 16, k > 0);
  }
}

/// O += P V; issued, not awaited.
template <class T, class Config>
__device__ __forceinline__ void multiply_values(float (&o)[Config::kHeadDim / 2],
                                                const std::uint32_t (&p)[Config::kBlockN / 4], std::uint64_t value) {
#pragma unroll
  for (int k = 0; k < Config::kBlockN / 16; ++k) {
    ptx::Wgmma<T, Config::kHeadDim>::template registers_shared<true>(o, p + 4 * k, value + k * (16 * 128 / 16));
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
    clear_output();
    for (RingPosition<Config::kWorkSlots> slot;; slot = slot.next()) {
      ptx::mbarrier_wait(shared_ + Config::kWorkFull + 8 * slot.stage(), slot.phase());
      const auto field = [&](int i) {
        // The same for the whole warp; said so, it can live in a uniform register.
        return __shfl_sync(0xffffffffu, load_field(slot, i), 0);
      };
      const int first_row = field(0) + 64 * consumer_, tile_blocks = field(1);
      if (tile_blocks < 0) break;
      const int blocks = first_row < params_.seq_len ? WorkItem::blocks_seen<Config>(params_, first_row + 64) : 0;
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
      if (Config::kHalfBlocks && half_block(first_row, block)) {
        if constexpr (Config::kHalfBlocks) {
          if (pending) {
            step<Step::next_item, true>(slot, first_row, block, true, skipped);
          } else {
            step<Step::first, true>(slot, first_row, block, true);
          }
        }
      } else if (pending) {
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

  __device__ __forceinline__ void clear_output() {
#pragma unroll
    for (int i = 0; i < Config::kHeadDim / 2; ++i) o_[i] = 0.0f;
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
  /// Writes its output, gives its slot back and clears o_ for the next.
  __device__ __forceinline__ void store(const float (&inverse)[2]) {
    store_output<T>(params_, stored_rows(), o_, inverse);
    __syncwarp();
    release(shared_ + Config::kWorkEmpty + 8 * stored_.stage());
    clear_output();
  }
  /// Whether this warpgroup's rows see no more than the first half of the keys of `block`, their last.
  [[nodiscard]] __device__ __forceinline__ bool half_block(int first_row, int block) const {
    return WorkItem::keys_seen<Config>(params_, first_row + 64) - block * Config::kBlockN <= Config::kBlockN / 2;
  }
  template <int kCount>
  __device__ __forceinline__ void mask(float (&s)[kCount], int first_row, int block) const {
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

  /// `skipped`: with next_item, blocks of the new item whose values are still to be passed over.
  /// kHalf: of an item's first block the mask leaves at most the first half; the rest is neither multiplied nor raised.
  template <Step kStep, bool kHalf = false>
  __device__ __forceinline__ void step(RingPosition<Config::kWorkSlots> slot, int first_row, int block, bool masked,
                                       int skipped = 0) {
    constexpr bool kProduct = kStep != Step::first;  // O += P V beside the new scores
    constexpr bool kNewItem = kStep == Step::first || kStep == Step::next_item;
    constexpr int kKeys = kHalf ? Config::kBlockN / 2 : Config::kBlockN;
    float s[kKeys / 2];
    await_keys();
    await_turn();
    ptx::hold_registers(s);
    ptx::wgmma_fence();
    multiply_scores<T, Config, kKeys>(s, query_ + queries_.stage() * (Config::kConsumers * Config::kQueryBytes / 16),
                                      keys_ + key_.stage() * (Config::kKeyBytes / 16));
    ptx::wgmma_commit();
    if constexpr (kProduct) {
      await_values();
      ptx::hold_registers(o_);
      ptx::hold_registers(p_);
      ptx::wgmma_fence();
      multiply_values<T, Config>(o_, p_, values_ + value_.stage() * (Config::kKeyBytes / 16));
      ptx::wgmma_commit();
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
    multiply_values<T, Config>(o_, p_, values_ + value_.stage() * (Config::kKeyBytes / 16));
    ptx::wgmma_commit();
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
  float o_[Config::kHeadDim / 2];
  std::uint32_t p_[Config::kBlockN / 4];
};

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) forward_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ unsigned char shared_memory[];
  const std::uint32_t shared = (ptx::shared_address(shared_memory) + 1023) / 1024 * 1024;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Config::kQueryStages * Config::kConsumers; ++i) {
      ptx::mbarrier_init(shared + Config::kQueryFull + 8 * i, 1);
      ptx::mbarrier_init(shared + Config::kQueryEmpty + 8 * i, 4);
    }
    for (int i = 0; i < Config::kStages; ++i) {
      ptx::mbarrier_init(shared + Config::kKeyFull + 8 * i, 1);
      ptx::mbarrier_init(shared + Config::kKeyEmpty + 8 * i, 4 * Config::kConsumers);
      ptx::mbarrier_init(shared + Config::kValueFull + 8 * i, 1);
      ptx::mbarrier_init(shared + Config::kValueEmpty + 8 * i, 4 * Config::kConsumers);
    }
    for (int i = 0; i < Config::kWorkSlots; ++i) {
      ptx::mbarrier_init(shared + Config::kWorkFull + 8 * i, 1);
      ptx::mbarrier_init(shared + Config::kWorkEmpty + 8 * i, 4 * Config::kConsumers + 2);
    }
    ptx::mbarrier_init(shared + Config::kWorkDemand, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 0) {
    ptx::set_max_registers_less<Config::kProducerRegisters>();
    // One thread a warp, so that none waits for another.
    if (threadIdx.x == 0) load_queries_and_keys<Config>(params, shared);
    if (threadIdx.x == 32) load_values<Config>(params, shared);
    if (threadIdx.x == 64) schedule<Config>(params, shared);
  } else {
    ptx::set_max_registers_more<Config::kConsumerRegisters>();
    Consumer<T, Config>(params, shared, __shfl_sync(0xffffffffu, warpgroup - 1, 0)).run();
  }
}

}  // namespace warpmeter::attention::flash_sm90
