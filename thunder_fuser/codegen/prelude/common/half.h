// provides: f16 bf16
// needs:
// Storage only: values are converted to float for every operation.
struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };
