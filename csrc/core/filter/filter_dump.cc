#include "core/filter/filter_dump.h"

#include <limits>

#include "core/wire/wire.h"

namespace monolith::core {
namespace {

std::string EncodeSliding(const SlidingHashFilterMeta& meta) {
  std::string message;
  WireWriter writer(&message);
  writer.Varint(1, meta.split_num);
  writer.Varint(2, meta.max_forward_step);
  writer.Varint(3, meta.max_backward_step);
  writer.Varint(4, meta.max_step);
  writer.Varint(5, meta.head);
  writer.Varint(6, meta.head_increment);
  writer.Varint(7, meta.failure_count);
  return message;
}

void DecodeSliding(std::string_view message, SlidingHashFilterMeta* meta) {
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    switch (field.number) {
      case 1:
        ReadScalar(field, &meta->split_num);
        break;
      case 2:
        ReadScalar(field, &meta->max_forward_step);
        break;
      case 3:
        ReadScalar(field, &meta->max_backward_step);
        break;
      case 4:
        ReadScalar(field, &meta->max_step);
        break;
      case 5:
        ReadScalar(field, &meta->head);
        break;
      case 6:
        ReadScalar(field, &meta->head_increment);
        break;
      case 7:
        ReadScalar(field, &meta->failure_count);
        break;
      default:
        break;
    }
  }
  if (!reader.ok()) throw CorruptFilterDump("The filter's metadata is not a protobuf message.");
}

// Users search for this text, so it stays as it is, spelling included.
template <typename T>
void CheckEqual(const char* what, T live, T read) {
  if (live == read) return;
  throw FilterDumpMismatch(std::string(what) + ": " + std::to_string(live) +
                           " does't match with : " + std::to_string(read) +
                           " read from hash filter checkpoint file.");
}

}  // namespace

std::string EncodeSplitMeta(const HashFilterSplitMeta& meta) {
  std::string record;
  WireWriter writer(&record);
  writer.Varint(1, meta.failure_count);
  writer.Varint(2, meta.total_size);
  writer.Varint(3, meta.num_elements);
  writer.Double(4, meta.fill_rate);
  writer.Bytes(5, EncodeSliding(meta.sliding));
  return record;
}

std::string EncodeSplitData(const HashFilterSplitData& data) {
  // A tag and at most 3 bytes per cell, which has 16 bits; the offset has 32.
  std::string record(6 + 4 * data.cells.size(), '\0');
  char* end = record.data();
  *end++ = static_cast<char>(WireTag(1, WireType::kVarint));
  end = WriteVarint(data.offset, end);
  for (const std::uint32_t cell : data.cells) {
    *end++ = static_cast<char>(WireTag(2, WireType::kVarint));
    end = WriteVarint(cell, end);
  }
  record.resize(end - record.data());
  return record;
}

HashFilterSplitMeta DecodeSplitMeta(std::string_view record) {
  HashFilterSplitMeta meta;
  bool has_sliding = false;
  WireReader reader(record);
  for (WireField field; reader.Next(&field);) {
    switch (field.number) {
      case 1:
        ReadScalar(field, &meta.failure_count);
        break;
      case 2:
        ReadScalar(field, &meta.total_size);
        break;
      case 3:
        ReadScalar(field, &meta.num_elements);
        break;
      case 4:
        ReadScalar(field, &meta.fill_rate);
        break;
      case 5:
        if (field.type != WireType::kBytes) break;
        DecodeSliding(field.bytes, &meta.sliding);
        has_sliding = true;
        break;
      default:
        break;
    }
  }
  if (!reader.ok() || !has_sliding) {
    throw CorruptFilterDump("The first record is not the metadata of a sliding hash filter.");
  }
  return meta;
}

void DecodeSplitData(std::string_view record, HashFilterSplitData* data) {
  std::uint64_t offset = 0;
  data->cells.clear();
  WireReader reader(record);
  for (WireField field; reader.Next(&field);) {
    if (field.number == 1) {
      ReadScalar(field, &offset);
    } else if (field.number == 2 && !AppendUint32s(field, &data->cells)) {
      throw CorruptFilterDump("The packed cells of a record are malformed.");
    }
  }
  if (!reader.ok()) throw CorruptFilterDump("A record of cells is not a protobuf message.");
  for (const std::uint32_t cell : data->cells) {
    if (cell > std::numeric_limits<std::uint16_t>::max()) {
      throw CorruptFilterDump("A cell does not fit into 16 bits: " + std::to_string(cell) + ".");
    }
  }
  data->offset = static_cast<std::size_t>(offset);
}

void CheckSameDimensions(const HashFilterSplitMeta& live, const HashFilterSplitMeta& read) {
  CheckEqual("split_num", live.sliding.split_num, read.sliding.split_num);
  CheckEqual("max_forward_step", live.sliding.max_forward_step, read.sliding.max_forward_step);
  CheckEqual("max_backward_step", live.sliding.max_backward_step, read.sliding.max_backward_step);
  CheckEqual("max_step", live.sliding.max_step, read.sliding.max_step);
  CheckEqual("total_size", live.total_size, read.total_size);
  CheckEqual("fill_rate", live.fill_rate, read.fill_rate);
}

}  // namespace monolith::core
