// The names of features, in the order in which records have them.
//
// Records mostly have the same features in the same order: the name that comes next is compared
// with the one that came next last time, and looked up only if it is another one. A feature that
// a record lacks costs one such look, and so does the one behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

namespace monolith::core {

// Whether `a` and `b` have the same bytes. Names are short: a call of memcmp costs more than this.
[[nodiscard]] inline bool SameBytes(std::string_view a, std::string_view b) {
  const std::size_t size = a.size();
  if (size != b.size()) return false;
  const auto word = [](std::string_view bytes, std::size_t at) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof(value));
    return value;
  };
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  if (size < kWord) return a == b;
  for (std::size_t at = 0; at + kWord < size; at += kWord) {
    if (word(a, at) != word(b, at)) return false;
  }
  return word(a, size - kWord) == word(b, size - kWord);
}

// Not thread-safe.
class NameOrder {
 public:
  struct Name {
    std::string text;
    int column = -1;
    Name* next = nullptr;  // What came behind it last time.
  };

  NameOrder() = default;
  NameOrder(NameOrder&&) = default;  // Names stay where they are.
  NameOrder& operator=(NameOrder&&) = default;

  // Stands before the first name of a record.
  [[nodiscard]] Name* start() {
    if (names_.empty()) names_.emplace_back();
    return &names_.front();
  }

  // The name that comes behind `last` in this record, where it is `text`. `column_of(text)` is
  // called for names that are new. Beyond many names nothing is remembered: returns null then.
  template <typename Fn>
  [[nodiscard]] Name* Follow(Name* last, std::string_view text, const Fn& column_of) {
    if (last->next != nullptr && SameBytes(last->next->text, text)) return last->next;
    Name* name = nullptr;
    const auto found = by_text_.find(text);
    if (found != by_text_.end()) {
      name = found->second;
    } else if (names_.size() < kMostNames) {
      names_.push_back({std::string(text), column_of(text), nullptr});
      name = &names_.back();
      by_text_.emplace(name->text, name);
    }
    if (name != nullptr) last->next = name;
    return name;
  }

 private:
  static constexpr std::size_t kMostNames = 1 << 12;

  std::deque<Name> names_;
  std::unordered_map<std::string_view, Name*> by_text_;
};

}  // namespace monolith::core
