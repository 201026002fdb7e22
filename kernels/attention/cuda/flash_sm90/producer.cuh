#pragma once

#include <cstdint>

#include "kernels/attention/cuda/flash_sm90/forward_config.cuh"
#include "kernels/attention/cuda/flash_sm90/params.hpp"
#include "kernels/attention/cuda/flash_sm90/work_item.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/ptx/tma.cuh"

/// The first warpgroup's three threads: one draws work items, one loads queries and keys, one values.
namespace warpmeter::attention::flash_sm90 {

/// The pages that a key block lies in.
template <class Config>
struct BlockPages {
  std::int32_t page[Config::kMostBoxes];
  int row;  ///< in its page, of each box; 0 where there are several

  __device__ __forceinline__ BlockPages(const PagedForwardParams& params, int batch, int block) {
    const int key = block * Config::kBlockN;
    const std::int32_t* const table = params.pages + batch * params.pages_stride + (key >> params.page_shift);
    row = key & ((1 << params.page_shift) - 1);
#pragma unroll
    for (int box = 0; box < Config::kMostBoxes; ++box) page[box] = box < params.boxes ? __ldg(table + box) : 0;
  }
};

template <class Config>
__device__ __forceinline__ void load_keys(const typename Config::Params& params, const CUtensorMap* map,
                                          std::uint32_t base, std::uint32_t full, std::uint32_t empty,
                                          RingPosition<Config::kStages> position, const WorkItem& work, int kv_head,
                                          int block) {
  const std::uint32_t barrier = full + 8 * position.stage();
  if constexpr (Config::kPaged) {
    // Asked for before the stage is free: what they take nobody waits for.
    const BlockPages<Config> pages(params, work.batch, block);
    ptx::mbarrier_wait(empty + 8 * position.stage(), position.phase() ^ 1);
    ptx::mbarrier_arrive_expect(barrier, Config::kKeyBytes);
    const std::uint32_t stage = base + position.stage() * Config::kKeyBytes;
#pragma unroll
    for (int box = 0; box < Config::kMostBoxes; ++box) {
      if (box == params.boxes) break;
#pragma unroll
      for (int panel = 0; panel < Config::kPanels; ++panel) {
        ptx::tma_load_4d(stage + panel * Config::kKeyPanelBytes + box * params.box_bytes, map, barrier, panel * 64,
                         pages.row, kv_head, pages.page[box], ptx::L2Policy::evict_last);
      }
    }
  } else {
    ptx::mbarrier_wait(empty + 8 * position.stage(), position.phase() ^ 1);
    ptx::mbarrier_arrive_expect(barrier, Config::kKeyBytes);
#pragma unroll
    for (int panel = 0; panel < Config::kPanels; ++panel) {
      ptx::tma_load_4d(base + position.stage() * Config::kKeyBytes + panel * Config::kKeyPanelBytes, map, barrier,
                       panel * 64, block * Config::kBlockN, kv_head, work.batch, ptx::L2Policy::evict_last);
    }
  }
}

/// Brings what an item will begin with into the L2 cache: its queries and its last key block.
template <class Config>
__device__ __forceinline__ void prefetch_item(const typename Config::Params& params, const WorkItem& work) {
  const int kv_head = work.head / params.group_size;
#pragma unroll 1
  for (int panel = 0; panel < Config::kPanels; ++panel) {
#pragma unroll 1
    for (int consumer = 0; consumer < Config::kConsumers; ++consumer) {
      ptx::tma_prefetch_4d(&params.q, panel * 64, work.first_row + 64 * consumer, work.head,
                           work.batch * params.query_batches);
    }
    const int row = (work.blocks - 1) * Config::kBlockN;
    if constexpr (Config::kPaged) {
      const std::int32_t* const table = params.pages + work.batch * params.pages_stride + (row >> params.page_shift);
#pragma unroll 1
      for (int box = 0; box < params.boxes; ++box) {
        const int page = __ldg(table + box), row_in_page = row & ((1 << params.page_shift) - 1);
        ptx::tma_prefetch_4d(&params.k, panel * 64, row_in_page, kv_head, page);
        ptx::tma_prefetch_4d(&params.v, panel * 64, row_in_page, kv_head, page);
      }
    } else {
      ptx::tma_prefetch_4d(&params.k, panel * 64, row, kv_head, work.batch);
      ptx::tma_prefetch_4d(&params.v, panel * 64, row, kv_head, work.batch);
    }
  }
}

/// The thread that draws work items and hands them to the loading threads and the consumers: what it takes, an atomic
/// and some divisions, nobody waits for. It draws late, when the keys of the item before are nearly all asked for:
/// what a block has drawn no other can take over, and they shall finish together.
template <class Config>
__device__ __forceinline__ void schedule(const typename Config::Params& params, std::uint32_t shared) {
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
__device__ __forceinline__ void load_queries_and_keys(const typename Config::Params& params, std::uint32_t shared) {
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
      load_keys<Config>(params, &params.k, shared + Config::kKeyOffset, shared + Config::kKeyFull,
                        shared + Config::kKeyEmpty, key, work, kv_head, block);
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
                         &params.q, barrier, panel * 64, max(0, work.first_row + 64 * consumer), work.head,
                         work.batch * params.query_batches, ptx::L2Policy::evict_first);
      }
    }
    query = query.next();
#pragma unroll 1  // registers
    for (int block = work.blocks - 2; block >= 0; --block) load_block(block);
  }
}

/// The thread that feeds the copy engine with values.
template <class Config>
__device__ __forceinline__ void load_values(const typename Config::Params& params, std::uint32_t shared) {
  ptx::prefetch_tensor_map(&params.v);
  RingPosition<Config::kWorkSlots> slot;
  RingPosition<Config::kStages> value;
  WorkItem work;
  while (take_item<Config>(shared, slot, work)) {
    const int kv_head = work.head / params.group_size;
#pragma unroll 1
    for (int block = work.blocks - 1; block >= 0; --block) {
      load_keys<Config>(params, &params.v, shared + Config::kValueOffset, shared + Config::kValueFull,
                        shared + Config::kValueEmpty, value, work, kv_head, block);
      value = value.next();
    }
  }
}

}  // namespace warpmeter::attention::flash_sm90
