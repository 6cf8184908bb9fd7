// PNG files, by libpng. Its errors are long jumps: functions that may be jumped out of own nothing.
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "opbridge/pose.h"
#include "proto.h"

namespace opbridge {

namespace {

constexpr png_uint_32 kMaxSide = 16384;  // a header may promise any size

struct Decoder {
  png_structp png = nullptr;
  png_infop info = nullptr;
  const std::string& bytes;
  size_t at = 0;
  char message[200] = "";

  explicit Decoder(const std::string& data) : bytes(data) {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    if (png != nullptr) info = png_create_info_struct(png);
    if (info == nullptr) throw Error(ErrorKind::kOutOfMemory, "libpng cannot be started");
    png_set_read_fn(png, this, on_read);
    png_set_user_limits(png, kMaxSide, kMaxSide);
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() { png_destroy_read_struct(&png, &info, nullptr); }

  static void on_error(png_structp png, png_const_charp text) {
    auto* self = static_cast<Decoder*>(png_get_error_ptr(png));
    std::snprintf(self->message, sizeof(self->message), "%s", text);
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}
  static void on_read(png_structp png, png_bytep to, size_t count) {
    auto* self = static_cast<Decoder*>(png_get_io_ptr(png));
    if (self->bytes.size() - self->at < count) png_error(png, "the file is cut off");
    std::memcpy(to, self->bytes.data() + self->at, count);
    self->at += count;
  }

  // The rest of the header, converted to what read_png() promises.
  bool read_header() {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_read_info(png, info);
    const int color = png_get_color_type(png, info), bits = png_get_bit_depth(png, info);
    if (color == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
    if (color == PNG_COLOR_TYPE_GRAY && bits < 8) png_set_expand_gray_1_2_4_to_8(png);
    const bool transparent = png_get_valid(png, info, PNG_INFO_tRNS) != 0;
    if (transparent) png_set_tRNS_to_alpha(png);
    if (color == PNG_COLOR_TYPE_GRAY_ALPHA || (color == PNG_COLOR_TYPE_GRAY && transparent))
      png_set_gray_to_rgb(png);
    if (bits == 16) png_set_swap(png);  // little-endian
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    return true;
  }

  bool read_rows(png_bytepp rows) {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_read_image(png, rows);
    png_read_end(png, nullptr);
    return true;
  }
};

}  // namespace

Array read_png(const std::string& path) {
  const std::string bytes = read_file(path);
  if (bytes.size() < 8 || png_sig_cmp(reinterpret_cast<png_const_bytep>(bytes.data()), 0, 8) != 0) {
    throw InvalidArgument("'" + path + "' is not a PNG file: it does not start with PNG's signature");
  }
  Decoder decoder(bytes);
  const auto damaged = [&] {
    return InvalidArgument("'" + path + "' is a PNG file that cannot be read: " + decoder.message);
  };
  if (!decoder.read_header()) throw damaged();
  const int64_t height = png_get_image_height(decoder.png, decoder.info),
                width = png_get_image_width(decoder.png, decoder.info);
  const DType dtype = png_get_bit_depth(decoder.png, decoder.info) == 16 ? DType::u16 : DType::u8;
  const Array picture(dtype, {height, width, png_get_channels(decoder.png, decoder.info)});
  const size_t stride = picture.bytes() / static_cast<size_t>(height);
  if (png_get_rowbytes(decoder.png, decoder.info) != stride)
    throw Error(ErrorKind::kInternal, "'" + path + "': libpng's rows have another size than expected");
  std::vector<png_bytep> rows;
  for (int64_t r = 0; r < height; ++r)
    rows.push_back(static_cast<png_bytep>(picture.data()) + static_cast<size_t>(r) * stride);
  if (!decoder.read_rows(rows.data())) throw damaged();
  return picture;
}

void write_png(const std::string& path, const Array& picture) {
  if (picture.dtype() != DType::u8 || picture.shape().size() != 3 || picture.shape()[2] != 3 ||
      picture.count() == 0 || picture.shape()[0] > kMaxSide || picture.shape()[1] > kMaxSide) {
    throw InvalidArgument("a picture to write must be u8[H,W,3], got " + picture.to_string());
  }
  png_image image;
  std::memset(&image, 0, sizeof(image));
  image.version = PNG_IMAGE_VERSION;
  image.height = static_cast<png_uint_32>(picture.shape()[0]);
  image.width = static_cast<png_uint_32>(picture.shape()[1]);
  image.format = PNG_FORMAT_RGB;
  if (png_image_write_to_file(&image, path.c_str(), 0, picture.data(), 0, nullptr) == 0)
    throw InvalidArgument("'" + path + "' cannot be written: " + image.message);
}

}  // namespace opbridge
