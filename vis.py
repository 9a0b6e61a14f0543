import glob, fsspec, pathlib, os
import pyarrow.dataset as ds
root='/tmp/files_h/vis'
for p in ['batch=1/a.jsonl','.wal-sink-held/abc','.wal-sink-held/.abc2','batch=1/.wal-sink-x.tmp']:
    f=pathlib.Path(root,p); f.parent.mkdir(parents=True,exist_ok=True); f.write_text('{"id":1}\n')
fs=fsspec.filesystem('file')
for pat in ['**','**/*','*','*/*','**/*.jsonl']:
    print(pat,'fsspec',[os.path.relpath(x,root) for x in fs.glob(f'{root}/{pat}') if os.path.isfile(x)])
    print(pat,'glob',[os.path.relpath(x,root) for x in glob.glob(f'{root}/{pat}',recursive=True) if os.path.isfile(x)])
print('rglob',[str(x.relative_to(root)) for x in pathlib.Path(root).rglob('*') if x.is_file()])
print('ds',ds.dataset(root,format='json',partitioning='hive').files)
