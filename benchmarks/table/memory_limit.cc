// How often a second this machine's memory can be visited at random, with prefetch: the limit that
// a table can reach and not pass.
//
// Usage: memory_limit ROWS ROW_BYTES SECONDS THREADS
// Prints millions per second: 64-byte reads, then updates of whole rows.
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kAhead = 32;  // Visits that are under way at once.

std::uint64_t Scramble(std::uint64_t x) {
  x *= 0x9E3779B97F4A7C15ull;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9ull;
  return x ^ (x >> 32);
}

struct Memory {
  char* data;
  std::size_t rows;
  std::size_t row_bytes;

  [[nodiscard]] char* Row(std::uint64_t visit) const {
    return data + (Scramble(visit) >> 32) * rows / (std::uint64_t{1} << 32) * row_bytes;
  }
};

// Visits rows for about `seconds`; returns how many, in millions per second.
template <typename Visit>
double Measure(const Memory& memory, std::size_t prefetch_bytes, double seconds, Visit visit) {
  constexpr std::uint64_t kVisits = 1 << 16;  // Between two looks at the clock.
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  std::uint64_t done = 0;
  double elapsed = 0;
  do {
    for (std::uint64_t i = done; i < done + kVisits; ++i) {
      const char* ahead = memory.Row(i + kAhead);
      for (std::size_t b = 0; b < prefetch_bytes; b += 64) __builtin_prefetch(ahead + b);
      visit(memory.Row(i));
    }
    done += kVisits;
    elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  } while (elapsed < seconds);
  return static_cast<double>(done) / elapsed / 1e6;
}

// Each thread has a part of the rows to itself.
template <typename Visit>
double OnThreads(int threads, const Memory& memory, std::size_t prefetch_bytes, double seconds,
                 Visit visit) {
  std::vector<double> rates(threads);
  std::vector<std::thread> workers;
  const std::size_t rows = memory.rows / threads;
  for (int t = 0; t < threads; ++t) {
    const Memory part{memory.data + t * rows * memory.row_bytes, rows, memory.row_bytes};
    workers.emplace_back([=, &rates] { rates[t] = Measure(part, prefetch_bytes, seconds, visit); });
  }
  double sum = 0;
  for (int t = 0; t < threads; ++t) {
    workers[t].join();
    sum += rates[t];
  }
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s ROWS ROW_BYTES SECONDS THREADS\n", argv[0]);
    return 1;
  }
  Memory memory{nullptr, std::strtoull(argv[1], nullptr, 10), std::strtoull(argv[2], nullptr, 10)};
  const double seconds = std::atof(argv[3]);
  const int threads = std::atoi(argv[4]);
  const std::size_t bytes = memory.rows * memory.row_bytes;
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    std::perror("mmap");
    return 1;
  }
  (void)madvise(mapped, bytes, MADV_HUGEPAGE);
  memory.data = static_cast<char*>(mapped);
  for (std::size_t i = 0; i < bytes; i += 4096) memory.data[i] = 1;

  std::atomic<std::uint64_t> sink{0};  // So that no read is left out.
  const double reads = OnThreads(threads, memory, 64, seconds, [&](char* row) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(row);
    std::uint64_t sum = 0;
    for (std::size_t w = 0; w < 8; ++w) sum += words[w];
    if (sum == ~std::uint64_t{0}) sink.fetch_add(1);
  });
  const std::size_t row_bytes = memory.row_bytes;
  const double updates = OnThreads(threads, memory, row_bytes, seconds, [=](char* row) {
    auto* words = reinterpret_cast<std::uint64_t*>(row);
    for (std::size_t w = 0; w < row_bytes / 8; ++w) words[w] += 1;
  });
  std::printf("%.1f %.1f\n", reads, updates);
  return 0;
}
